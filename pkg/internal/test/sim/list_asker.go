package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/test/listcheck"
)

// asker asks the owners of all shards, as a node does for its callers (package ask), but over a network that takes time.
type asker struct {
	*lister
	name string
	rng  *rand.Rand
}

// question is a question to owners, in the form that the checker judges.
type question struct {
	filter listcheck.Filter
	order  readmodel.Order
	limit  int
	after  *readmodel.Place
}

// askAll asks one question after another until ctx ends.
func (a *asker) askAll(ctx context.Context) {
	for clock.Sleep(ctx, durationBetween(a.rng, 0, 40*time.Millisecond)) {
		q := question{filter: pickRandom(a.rng, []listcheck.Filter{listcheck.All, listcheck.Paused, listcheck.Failing}), order: readmodel.ByName, limit: pickRandom(a.rng, []int{1, 2, 4, 40})}

		switch a.rng.IntN(4) {
		case 0:
			q.order = pickRandom(a.rng, readmodel.Orders)
		case 1:
			q.filter, q.limit = listcheck.All, 4
			a.walkPages(ctx, q)
			continue
		}

		// While a node is gone, lists fail quickly. Others are worth more.
		if list, _, ok := a.askOwners(ctx, q); ok && len(list.Missing) > 0 {
			clock.Sleep(ctx, durationBetween(a.rng, 0, 200*time.Millisecond))
		}
	}
}

// walkPages reads all pages of a list by name.
func (a *asker) walkPages(ctx context.Context, q question) {
	var pages []listcheck.List

	for {
		list, page, ok := a.askOwners(ctx, q)
		if !ok {
			return
		}

		if pages = append(pages, list); !page.More || len(page.Places) == 0 {
			break
		}
		q.after = &page.Places[len(page.Places)-1]
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	a.walks = append(a.walks, pages)
}

// askOwners asks a question, and keeps what is answered. It returns false if ctx has ended.
func (a *asker) askOwners(ctx context.Context, q question) (listcheck.List, readmodel.Page, bool) {
	asked := time.Now()
	query := &readmodel.Query{
		Subject: a.name, Filter: readmodel.Filter{Namespace: simNamespace}, Order: q.order, After: q.after, Limit: q.limit, Now: asked.UnixMilli(),
	}

	if q.filter != listcheck.All {
		line, err := readmodel.ParseQueryLine("state:" + string(q.filter))
		if err != nil {
			a.abort(err)
		}
		query.Filter.Conditions = line.Conditions()
	}

	first := a.askNodes(ctx, query, a.reachableProcesses(), nil)
	final := maps.Clone(first)

	if lost := readmodel.Superseded(inOrder(first)); len(lost) > 0 {
		var again []*process
		for _, p := range a.reachableProcesses() {
			if len(lost[p.link.name]) > 0 {
				again = append(again, p)
			}
		}

		// Without a second answer, nothing of the first one counts.
		for name := range lost {
			delete(final, name)
		}
		maps.Copy(final, a.askNodes(ctx, query, again, lost))
		a.countReached("list with a superseded shard")
	}

	if ctx.Err() != nil {
		return listcheck.List{}, readmodel.Page{}, false
	}

	shown := time.Now()
	page := readmodel.Merge(query, a.opts.Shards, inOrder(final))
	list := a.listOf(q, asked, shown, &page)

	a.mu.Lock()
	defer a.mu.Unlock()

	a.lists = append(a.lists, list)

	return list, page, true
}

// listOf returns a page in the form that the checker judges.
func (a *asker) listOf(q question, asked, shown time.Time, p *readmodel.Page) listcheck.List {
	l := listcheck.List{
		Asker: a.name, Filter: q.filter, ByName: q.order == readmodel.ByName, Asked: asked, Shown: shown,
		AsOf: asked.Add(-time.Duration(p.AgeMS) * time.Millisecond), Count: p.Counts.Tasks, Missing: p.Missing,
		Collecting: p.Collected() < 100, More: p.More, Names: make([]string, len(p.Places)),
	}
	if q.after != nil {
		l.After = q.after.Name
	}
	for i := range p.Places {
		l.Names[i] = p.Places[i].Name
	}

	return l
}

// inOrder returns answers in the order of the nodes' names.
func inOrder(answers map[string]readmodel.NodeAnswer) []readmodel.NodeAnswer {
	return slices.SortedFunc(maps.Values(answers), func(a, b readmodel.NodeAnswer) int { return strings.Compare(a.Node, b.Node) })
}

// reachableProcesses returns the processes that other nodes may ask.
func (l *lister) reachableProcesses() (list []*process) {
	l.world.mu.Lock()
	defer l.world.mu.Unlock()

	for _, p := range l.all {
		if m, _ := p.link.modeAndChange(); m != dead && p.daemon.Load() != nil && !isClosed(p.gone) {
			list = append(list, p)
		}
	}

	return list
}

// answerTimeout is how long an asker waits for a node.
const answerTimeout = time.Second

// askNodes asks processes at the same time. without contains, by node, the shards that it is to leave out. The result
// contains the answers of the nodes that have answered.
func (a *asker) askNodes(ctx context.Context, q *readmodel.Query, processes []*process, without map[string][]int) map[string]readmodel.NodeAnswer {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()

	var wg sync.WaitGroup
	var mu sync.Mutex
	answers := map[string]readmodel.NodeAnswer{}

	for _, p := range processes {
		there, back := a.drawTransit(), a.drawTransit()
		wg.Go(func() {
			if !clock.Sleep(ctx, there) || !a.isReachable(p) {
				return
			}

			answer, err := answerWhenIdle(ctx, p, q, without[p.link.name])
			if err != nil || !clock.Sleep(ctx, back) || !a.isReachable(p) {
				return
			}

			mu.Lock()
			defer mu.Unlock()
			answers[p.link.name] = answer
		})
	}

	wg.Wait()

	return answers
}

// answerWhenIdle asks a process, again if it is busy with other queries.
func answerWhenIdle(ctx context.Context, p *process, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
	for {
		answer, err := p.daemon.Load().AnswerQuery(ctx, q, without)

		var busy *readmodel.Busy
		if !errors.As(err, &busy) || !clock.Sleep(ctx, busy.RetryAfter) {
			return answer, err
		}
	}
}

// drawTransit draws how long a request or an answer takes.
func (a *asker) drawTransit() time.Duration {
	if a.rng.IntN(4) == 0 {
		return durationBetween(a.rng, 0, answerTimeout/2)
	}
	return durationBetween(a.rng, 0, 8*time.Millisecond)
}

// isReachable reports whether a process is alive and its host can be reached.
func (l *lister) isReachable(p *process) bool {
	l.world.mu.Lock()
	address := l.nodes[p.link.name].address
	l.world.mu.Unlock()

	l.net.mu.Lock()
	d := l.net.listeners[address]
	silent := d != nil && d.silent
	l.net.mu.Unlock()

	m, _ := p.link.modeAndChange()

	return m != dead && !silent && !isClosed(p.gone)
}

// reader reads lists through the API of any node, page by page.
type reader struct {
	*lister
	name string
	rng  *rand.Rand
}

// readAll reads one list after another until ctx ends.
func (r *reader) readAll(ctx context.Context) {
	for clock.Sleep(ctx, durationBetween(r.rng, 0, 400*time.Millisecond)) {
		filter := pickRandom(r.rng, []listcheck.Filter{listcheck.All, listcheck.All, listcheck.Paused, listcheck.Failing})
		limit := 3 + r.rng.IntN(30)

		// Without the query line, the API would read the names from etcd.
		v := url.Values{"q": {"name~t"}, "brief": {"true"}, "limit": {fmt.Sprint(limit)}}
		if filter != listcheck.All {
			v = url.Values{"q": {"state:" + string(filter)}, "brief": {"true"}, "limit": {fmt.Sprint(limit)}}
		}

		r.readPages(ctx, r.anyNode(), filter, v, limit)
	}
}

// anyNode draws a node.
func (r *reader) anyNode() *node {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	return r.nodes[pickRandom(r.rng, r.names)]
}

// readPages reads all pages of a list, and keeps them.
func (r *reader) readPages(ctx context.Context, n *node, filter listcheck.Filter, v url.Values, limit int) {
	var pages []listcheck.List
	after := ""

	for {
		var page client.QueryList[client.Task]
		asked := time.Now()
		if err := r.requestByPath(ctx, n, http.MethodGet, "/v1/namespaces/"+simNamespace+"/tasks?"+v.Encode(), nil, &page); err != nil {
			r.noteFailure(err)
			return
		}
		if page.Count == nil {
			r.abort(fmt.Errorf("the owners were not asked for %s", v.Encode()))
		}

		shown := time.Now()
		list := listcheck.List{
			Asker: r.name, Filter: filter, ByName: true, After: after, Asked: asked, Shown: shown,
			AsOf: shown.Add(-time.Duration(page.AgeMS) * time.Millisecond), Count: *page.Count, Missing: page.Missing,
			Collecting: page.Collecting != nil, More: page.Next != "", Names: make([]string, len(page.Items)),
		}
		for i := range page.Items {
			list.Names[i] = page.Items[i].Namespace + "/" + page.Items[i].Name
		}

		pages = append(pages, list)
		r.keepList(list)

		if !list.More {
			break
		}

		// A task that was deleted meanwhile is not shown, so the last place of the page is not known.
		if len(list.Names) < limit {
			return
		}
		after = list.Names[len(list.Names)-1]
		v.Set("page", page.Next)
	}

	if filter == listcheck.All {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.walks = append(r.walks, pages)
	}
}

// keepList keeps a list that the API has shown.
func (r *reader) keepList(list listcheck.List) {
	r.countReached("list through the API")

	r.mu.Lock()
	defer r.mu.Unlock()
	r.lists = append(r.lists, list)
}

// noteFailure counts why the API has shown no list.
func (r *reader) noteFailure(err error) {
	var problem *client.Error
	if errors.As(err, &problem) {
		r.countReached("API answers " + problem.Code)
	}
}
