// Package selection finds the tasks that a request selects by namespace, names, labels and state, page by page and in the
// requested order.
//
// A list by name that filters by nothing but the namespace, exact names or a prefix of the name reads a key range of
// etcd: it is exact, cheap, and needs no owner of a shard. With names that the owners have given (ask.Asker.Splits), it
// reads short ranges, because etcd counts all keys of a range. For every other list, the owners of the shards find the
// tasks (package ask), and only the tasks of the page are read from etcd. A list is not a snapshot over its pages.
package selection

import (
	"context"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/ask"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// Finder finds tasks. It is safe for concurrent use.
type Finder struct {
	store *store.Store
	ref   func(namespace, name string) record.Ref // maps a task to its shard
	asker *ask.Asker
}

// NewFinder returns a Finder. ref maps a task to its shard.
func NewFinder(st *store.Store, ref func(namespace, name string) record.Ref, asker *ask.Asker) *Finder {
	return &Finder{store: st, ref: ref, asker: asker}
}

// NameQuery are the parameters that select tasks by labels and names.
type NameQuery struct {
	Selector ask.SelectorText `query:"selector" doc:"Labels: \"team = data, env in (prod, staging), !old\"."`
	Name     ask.Globs        `query:"name" doc:"Names or globs of tasks, separated by commas: \"web-*,db\"; with a namespace: \"prod/web-*\"."`
}

// QuestionOf returns the question for the tasks that the caller may read. The namespace is that of the path, if the path
// has one.
func QuestionOf(c *httpapi.Call, q NameQuery) (ask.Question, error) {
	question := ask.Question{Names: q.Name, Selector: q.Selector, Order: readmodel.ByName}
	if c.Request.PathValue("ns") == "" {
		question.Within = c.Rights().Readable(access.Tasks)
		return question, nil
	}

	var err error
	question.Namespace, err = c.Namespace()

	return question, err
}

// RequireRuns limits a question to namespaces whose runs the caller may read, if its answer tells of them. It refuses one
// about a namespace whose runs the caller may not read.
func RequireRuns(c *httpapi.Call, q *ask.Question) error {
	if !q.AboutRuns() {
		return nil
	}
	if q.Namespace != "" {
		return c.Rights().Require(access.Need{Verb: access.Read, Kind: access.Runs, Namespace: q.Namespace})
	}

	q.Within = Intersect(q.Within, c.Rights().Readable(access.Runs))

	return nil
}

// Intersect returns the namespaces that are in both lists, in order. A list that is nil contains every namespace.
func Intersect(a, b []string) []string {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}

	both := []string{} // none, and not all
	for _, ns := range a {
		if slices.Contains(b, ns) {
			both = append(both, ns)
		}
	}

	return both
}

// Page is a page of tasks.
type Page struct {
	Tasks  []record.Brief
	After  string      // the cursor of the next page; "": none
	Answer *ask.Answer // that of the owners; nil: the page was read from a key range
}

// Find returns a page of tasks. complete refuses an answer that may lack tasks.
func (h *Finder) Find(c *httpapi.Call, q ask.Question, p httpapi.Paging, complete bool) (Page, error) {
	if readsRange(&q) {
		found, after, err := h.byRange(c, &q, p)
		return Page{Tasks: found, After: after}, err
	}

	answer, after, err := h.Ask(c, q, p, complete)
	if err != nil {
		return Page{}, err
	}

	// Only the tasks of the page are read. Some may have been deleted meanwhile.
	found, err := h.store.BriefsOf(c.Context(), h.refsOf(answer.Places))

	return Page{Tasks: found, After: after, Answer: &answer}, err
}

// Ask asks the owners for a page of tasks. It returns the cursor of the next page, or "" if there is none.
func (h *Finder) Ask(c *httpapi.Call, q ask.Question, p httpapi.Paging, complete bool) (answer ask.Answer, after string, err error) {
	q.Limit = p.Limit
	if p.After != "" {
		if q.After, err = ask.ParsePlace(p.After); err != nil {
			return answer, "", err
		}
	}

	if complete {
		answer, err = h.asker.AskComplete(c, q)
	} else {
		answer, err = h.asker.Ask(c, q)
	}

	if err != nil {
		return answer, "", err
	}

	return answer, answer.NextPage(), nil
}

// AllNames returns the full names of all tasks that match, in no particular order. Each shard must answer.
func (h *Finder) AllNames(c *httpapi.Call, q ask.Question) ([]string, error) {
	q.Limit, q.Order, q.After = ask.MaxLimit, readmodel.ByName, nil
	var names []string

	for {
		answer, err := h.asker.AskComplete(c, q)
		if err != nil {
			return nil, err
		}

		for _, p := range answer.Places {
			names = append(names, p.Name)
		}

		if !answer.More || len(answer.Places) == 0 {
			return names, nil
		}

		q.After = &answer.Places[len(answer.Places)-1]
	}
}

// refsOf returns the tasks at some places.
func (h *Finder) refsOf(places []readmodel.Place) []record.Ref {
	refs := make([]record.Ref, len(places))
	for i, p := range places {
		namespace, name, _ := strings.Cut(p.Name, "/")
		refs[i] = h.ref(namespace, name)
	}

	return refs
}

// readsRange reports whether a key range of etcd, or the keys of a few tasks, contains just the tasks that match.
func readsRange(q *ask.Question) bool {
	if q.Order != readmodel.ByName || q.Selector.Selector != nil || q.Failing || q.Paused || !q.Query.Empty() {
		return false
	}

	if _, exact := q.Names.ExactNames(q.Namespace); exact {
		return true
	}

	_, _, is := q.Names.Range(q.Namespace)

	return is
}

// byRange returns a page of tasks from a key range, in the order of their names, and the cursor of the next page.
func (h *Finder) byRange(c *httpapi.Call, q *ask.Question, p httpapi.Paging) (found []record.Brief, after string, err error) {
	if names, exact := q.Names.ExactNames(q.Namespace); exact {
		return h.byNames(c.Context(), q, names, p)
	}

	ns, prefix, _ := q.Names.Range(q.Namespace)
	page := store.BriefPage{Namespace: ns, Prefix: prefix, After: p.After, Limit: p.Limit}

	if ns != "" && !mayRead(q.Within, ns) {
		return nil, "", nil
	}

	page.Splits = h.asker.Splits(c.Context(), q.Namespace, q.Within)
	if ns == "" && q.Within != nil {
		return h.findInNamespaces(c.Context(), q.Within, page)
	}

	return h.store.Briefs(c.Context(), page)
}

// byNames returns a page of the tasks with some names.
func (h *Finder) byNames(ctx context.Context, q *ask.Question, names [][2]string, p httpapi.Paging) (found []record.Brief, after string, err error) {
	var refs []record.Ref
	for _, n := range names {
		if ref := h.ref(n[0], n[1]); mayRead(q.Within, ref.Namespace) && ref.String() > p.After {
			refs = append(refs, ref)
		}
	}

	slices.SortFunc(refs, func(a, b record.Ref) int { return strings.Compare(a.String(), b.String()) })
	refs = slices.Compact(refs)

	if len(refs) > p.Limit {
		refs = refs[:p.Limit]
		after = refs[p.Limit-1].String()
	}

	found, err = h.store.BriefsOf(ctx, refs)

	return found, after, err
}

// mayRead reports whether a namespace is among those that the caller may read.
func mayRead(within []string, namespace string) bool {
	if within == nil {
		return true
	}

	_, found := slices.BinarySearch(within, namespace)

	return found
}

// findInNamespaces returns a page of the tasks of some namespaces, one after another. It reads nothing outside them, so
// that neither the cursor of a page nor the time that it takes tells what other namespaces contain.
func (h *Finder) findInNamespaces(ctx context.Context, namespaces []string, p store.BriefPage) (found []record.Brief, after string, err error) {
	from, _, _ := strings.Cut(p.After, "/")
	first, _ := slices.BinarySearch(namespaces, from)
	at := p.After

	for i, ns := range namespaces[first:] {
		if !strings.HasPrefix(at, ns+"/") {
			at = ""
		}

		for more := true; more; more = at != "" {
			var some []record.Brief
			part := store.BriefPage{Namespace: ns, After: at, Limit: p.Limit - len(found), Splits: p.Splits}
			if some, at, err = h.store.Briefs(ctx, part); err != nil {
				return nil, "", err
			}

			if found = append(found, some...); len(found) < p.Limit {
				continue
			}

			// The page is full. Another one follows, which may be empty, unless this was the last namespace.
			last := found[len(found)-1]
			if at == "" && first+i == len(namespaces)-1 {
				return found, "", nil
			}

			return found, last.Namespace + "/" + last.Name, nil
		}
	}

	return found, "", nil
}
