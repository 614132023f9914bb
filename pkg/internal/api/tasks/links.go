package tasks

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/depgraph"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A write of a task with sources has two steps. setLinks computes the links of the new version from the former one, without reading
// anything. checkLinks reads the tasks upstream and downstream at one revision, and refuses links that are not allowed. The write
// compares that no other writer has added a link in the namespace since, and that the sources exist. If that fails, the request
// decides again, so that the answer names what has changed: a source that is gone, or a cycle.

// setLinks sets the links of st, which replaces old; nil: st is new. Links whose source has not changed keep their generation.
func (h *Handlers) setLinks(old *store.Stored, st *store.Stored) {
	var former task.Sources
	var links []task.Link
	if old != nil {
		former, links = old.Task.After, old.Entry.Links
	}

	st.Entry.Links = task.LinksOf(st.Task, former, links)
	st.Links = store.LinkChange{}
	ref := func(name string) record.Ref { return h.Ref(st.Ref.Namespace, name) }

	for _, l := range st.Entry.Links {
		if l.Generation == st.Task.Generation {
			st.Links.Added = append(st.Links.Added, ref(l.Task))
		}
	}

	// An entry and its spec name the same sources, unless one of them is damaged.
	for _, l := range links {
		if former.Find(l.Task) == nil {
			former = append(slices.Clip(former), task.Source{Task: l.Task})
		}
	}
	for _, name := range former.Names() {
		if st.Entry.Link(name) == nil {
			st.Links.Removed = append(st.Links.Removed, ref(name))
		}
	}
}

// checkLinks checks the links that a write adds to a task. In a dry run, known reports which tasks an earlier part of the request would
// create; otherwise it is nil.
func (h *Handlers) checkLinks(ctx context.Context, st *store.Stored, known func(record.Ref) bool) error {
	return h.checkAllLinks(ctx, []*store.Stored{st}, known)[0]
}

// checkAllLinks is checkLinks for tasks that one transaction writes, of which none is a source that another one gets. It returns an
// error, or nil, for each of them.
func (h *Handlers) checkAllLinks(ctx context.Context, tasks []*store.Stored, known func(record.Ref) bool) []error {
	faults := make([]error, len(tasks))
	checks := map[string]*linkCheck{} // by namespace

	for _, st := range tasks {
		if len(st.Links.Added) == 0 {
			continue
		}

		ns := st.Ref.Namespace
		if checks[ns] == nil {
			checks[ns] = &linkCheck{known: known, ref: func(name string) record.Ref { return h.Ref(ns, name) }}
		}
		checks[ns].query.Namespace = ns
		checks[ns].query.Down = append(checks[ns].query.Down, st.Ref.Name)
		for _, source := range st.Links.Added {
			checks[ns].query.Up = append(checks[ns].query.Up, source.Name)
		}
	}

	for _, c := range checks {
		// A chain that is longer than allowed is found without its other end.
		c.query.Levels = task.MaxChain + 1
		if c.links, c.err = h.Store.LinksAround(ctx, c.query, h.Ref); c.err == nil {
			c.graph = graphOf(c.links.List)
		}
	}

	// Each task is judged with the links that the ones before it add and remove.
	for i, st := range tasks {
		switch c := checks[st.Ref.Namespace]; {
		case c == nil: // no task of its namespace gets a source
		case len(st.Links.Added) > 0 && c.err != nil:
			faults[i] = c.err
		case len(st.Links.Added) > 0:
			faults[i] = c.addLinks(st)
		case c.err == nil:
			for _, source := range st.Links.Removed {
				c.graph.Remove(source.Name, st.Ref.Name)
			}
		}
	}

	return faults
}

// graphOf returns the graph of links that were read.
func graphOf(list []store.Link) *depgraph.Graph {
	g := depgraph.New()
	for _, l := range list {
		g.Add(depgraph.Link{Source: l.Source, Dependent: l.Dependent, When: l.When, Results: l.Results})
	}

	return g
}

// linkCheck checks the links that a transaction adds in one namespace.
type linkCheck struct {
	query store.LinkQuery
	links store.Links
	graph *depgraph.Graph
	err   error // the links could not be read
	known func(record.Ref) bool
	ref   func(name string) record.Ref
}

// addLinks adds the links of a task to the graph, or returns why they are not allowed.
func (c *linkCheck) addLinks(st *store.Stored) error {
	name := st.Ref.Name
	before := c.graph.Sources(name)

	was := make([]depgraph.Link, len(before))
	for i, source := range before {
		was[i], _ = c.graph.Link(source, name)
		c.graph.Remove(source, name)
	}
	for _, l := range depgraph.LinksOf(name, st.Task.After) {
		c.graph.Add(l)
	}

	err := c.refusal(st)
	if err == nil {
		st.Links.GraphMod = c.links.GraphMod
		return nil
	}

	// The others are judged without this task.
	for _, source := range st.Task.After.Names() {
		c.graph.Remove(source, name)
	}
	for _, l := range was {
		c.graph.Add(l)
	}

	return err
}

// refusal returns why the graph with the links of a task is not allowed.
func (c *linkCheck) refusal(st *store.Stored) error {
	name := st.Ref.Name

	if cycle := c.graph.Cycle(name); cycle != nil {
		i := slices.Index(st.Task.After.Names(), cycle[len(cycle)-2])
		return cycleError(fmt.Sprintf("after[%d]", i), cycle)
	}

	for i, source := range st.Task.After.Names() {
		if !slices.ContainsFunc(st.Links.Added, func(r record.Ref) bool { return r.Name == source }) {
			continue // of a link that the task has already, the source may have been deleted by force
		}

		field := fmt.Sprintf("after[%d]", i)
		if c.links.Absent[source] && (c.known == nil || !c.known(c.ref(source))) {
			return task.Invalid(task.CodeBadValue, field, "%s is not a task of namespace %s", task.Quote(source), st.Ref.Namespace)
		}
		if n := len(c.graph.Dependents(source)); n > task.MaxDependents {
			return task.Invalid(task.CodeTooMany, field, "%s has %d dependents already, and may have at most %d", task.Quote(source), n-1, task.MaxDependents)
		}
	}

	if n := c.graph.DepthThrough(name); n > task.MaxChain {
		return task.Invalid(task.CodeTooMany, "after", "the longest chain of tasks that run after each other would have %d tasks; at most %d are allowed", n, task.MaxChain)
	}

	return nil
}

// cycleError returns the failure of a write that would close a cycle, which begins and ends with the same task.
func cycleError(field string, cycle []string) error {
	return httpapi.Fail(http.StatusConflict, client.CodeCycle, "the task would run after itself: %s", strings.Join(cycle, " -> ")).
		WithField(field).WithHint("remove one of these tasks from the after of the next one")
}

// refuseDependents returns why a task cannot be deleted: the tasks that run after it.
func (h *Handlers) refuseDependents(c *httpapi.Call, ref record.Ref) error {
	links, err := h.Store.Dependents(c.Context(), ref)
	if err != nil || len(links) == 0 {
		return err
	}

	names := fmt.Sprintf("%d tasks run", len(links))
	if len(links) == 1 {
		names = "a task runs"
	}
	// The caller may lack the right to know them.
	if c.Rights().CanRead(ref.Namespace) {
		const most = 5
		list := make([]string, 0, most)
		for _, l := range links[:min(len(links), most)] {
			list = append(list, l.Dependent)
		}
		if len(links) > most {
			list = append(list, fmt.Sprintf("%d more", len(links)-most))
		}
		names += " after it: " + strings.Join(list, ", ")
	} else {
		names += " after it"
	}

	return httpapi.Fail(http.StatusConflict, client.CodeInUse, "task %s cannot be deleted, because %s", ref, names).
		WithHint("delete them first, or remove the task from their after; force deletes it nevertheless")
}
