package ask

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// QuestionOf returns the question for the tasks that the caller may read and that match a query line. The namespace is that
// of the path, if the path has one. If the answer shows how runs have ended, the question is limited to namespaces whose
// runs the caller may read, and refused if it is about another one.
func QuestionOf(c *httpapi.Call, line readmodel.QueryLine, order readmodel.Order) (q Question, err error) {
	q = Question{Query: line, Order: cmp.Or(order, readmodel.ByName)}

	if c.Request.PathValue("ns") == "" {
		q.Within = c.Rights().Readable(access.Tasks)
		if q.AboutRuns() {
			q.Within = Intersect(q.Within, c.Rights().Readable(access.Runs))
		}

		return q, nil
	}

	if q.Namespace, err = c.Namespace(); err == nil && q.AboutRuns() {
		err = c.Rights().Require(access.Need{Verb: access.Read, Kind: access.Runs, Namespace: q.Namespace})
	}

	return q, err
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

// TaskPage is a page of tasks.
type TaskPage struct {
	Tasks  []record.Brief
	After  string  // the cursor of the next page; "": none
	Answer *Answer // that of the owners; nil: the page was read from a key range
}

// FailingTasks returns the full names of the page's tasks that their owners know to be failing.
func (p *TaskPage) FailingTasks() map[string]bool {
	if p.Answer == nil {
		return nil
	}

	failing := map[string]bool{}
	for _, place := range p.Answer.Places {
		if place.Failing {
			failing[place.Name] = true
		}
	}

	return failing
}

// FindTasks returns a page of tasks. If the order is by name, and the query line only selects names or a prefix of them, it
// reads a key range of etcd, which is exact, cheap, and needs no owner of a shard. With names that the owners have given
// (Splits), it reads short ranges, because etcd counts all keys of a range. For every other list, the owners find the
// tasks, and only those of the page are read from etcd. complete refuses an answer that may lack tasks.
//
// A list is not a snapshot over its pages.
func (a *Asker) FindTasks(c *httpapi.Call, q Question, p httpapi.Paging, complete bool) (page TaskPage, err error) {
	if q.Order == readmodel.ByName {
		if names, exact := q.Query.ExactNames(q.Namespace); exact {
			page.Tasks, page.After, err = a.findByNames(c.Context(), &q, names, p)
			return page, err
		}

		if ns, prefix, ok := q.Query.NameRange(q.Namespace); ok {
			page.Tasks, page.After, err = a.findInRange(c.Context(), &q, store.BriefPage{Namespace: ns, Prefix: prefix, After: p.After, Limit: p.Limit})
			return page, err
		}
	}

	q.Limit = p.Limit
	if p.After != "" {
		if q.After, err = ParsePlace(p.After); err != nil {
			return page, err
		}
	}

	ask := a.Ask
	if complete {
		ask = a.AskComplete
	}

	answer, err := ask(c, q)
	if err != nil {
		return page, err
	}
	page.Answer, page.After = &answer, answer.NextPage()

	// Only the tasks of the page are read. Some may have been deleted meanwhile.
	refs := make([]record.Ref, len(answer.Places))
	for i, place := range answer.Places {
		namespace, name, _ := strings.Cut(place.Name, "/")
		refs[i] = a.Ref(namespace, name)
	}
	page.Tasks, err = a.Store.BriefsOf(c.Context(), refs)

	return page, err
}

// AllNames returns the full names of all tasks that match, in no particular order. Each shard must answer.
func (a *Asker) AllNames(c *httpapi.Call, q Question) ([]string, error) {
	q.Limit, q.Order, q.After = MaxLimit, readmodel.ByName, nil
	var names []string

	for {
		answer, err := a.AskComplete(c, q)
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

// findInRange returns a page of the tasks whose names begin with a text, in the order of their names, and the cursor of the
// next page.
func (a *Asker) findInRange(ctx context.Context, q *Question, p store.BriefPage) (found []record.Brief, after string, err error) {
	if p.Namespace != "" && !mayRead(q.Within, p.Namespace) {
		return nil, "", nil
	}

	p.Splits = a.Splits(ctx, q.Namespace, q.Within)
	if p.Namespace == "" && q.Within != nil {
		return a.findInNamespaces(ctx, q.Within, p)
	}

	return a.Store.Briefs(ctx, p)
}

// findByNames returns a page of the tasks with some names.
func (a *Asker) findByNames(ctx context.Context, q *Question, names [][2]string, p httpapi.Paging) (found []record.Brief, after string, err error) {
	var refs []record.Ref
	for _, n := range names {
		if ref := a.Ref(n[0], n[1]); mayRead(q.Within, ref.Namespace) && ref.String() > p.After {
			refs = append(refs, ref)
		}
	}

	slices.SortFunc(refs, func(x, y record.Ref) int { return strings.Compare(x.String(), y.String()) })
	refs = slices.Compact(refs)

	if len(refs) > p.Limit {
		refs = refs[:p.Limit]
		after = refs[p.Limit-1].String()
	}

	found, err = a.Store.BriefsOf(ctx, refs)

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
func (a *Asker) findInNamespaces(ctx context.Context, namespaces []string, p store.BriefPage) (found []record.Brief, after string, err error) {
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
			if some, at, err = a.Store.Briefs(ctx, part); err != nil {
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
