package sim

import (
	"cmp"
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
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/check"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/testkit/listcheck"
	"github.com/carillonhq/carillon/pkg/internal/testkit/mutant"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ListOptions describe a simulation of lists (RunLists). Options.Duration is how long random faults follow on the death
// of a node and the drain of another one; zero means that none do.
type ListOptions struct {
	Options
	Askers  int // how many ask the owners of shards without pause
	Readers int // how many read lists through the API without pause
}

// ListReport is the result of a simulation of lists.
type ListReport struct {
	Seed       uint64
	Violations []check.Violation
	Caught     map[string]check.Violation // by mutant: the first violation by its lists
	Counts     map[string]int             // how often something was reached
	Story      string                     // what happened, with the nodes' logs and the changes of tasks
}

// listCalls is what users do while lists are read.
var listCalls = []string{"apply", "apply", "pause", "resume", "pause until", "delete", "re-create", "trigger", "trigger", "trigger", "retry"}

// listFaults are the faults that follow on the death of a node and the drain of another one.
var listFaults = []string{"kill", "kill host", "drain", "join", "cut", "held", "deaf", "stall watches", "break watches", "revoke a lease", "compact"}

// RunLists simulates a cluster whose tasks are listed without pause while nodes are killed, drained and cut off. It
// judges each list by the history (G30), and also the lists that the mutants of package mutant would have shown.
func RunLists(t *testing.T, seed uint64, o ListOptions) ListReport {
	t.Helper()

	o.Nodes, o.Shards, o.Tasks = cmp.Or(o.Nodes, 3), cmp.Or(o.Shards, 16), cmp.Or(o.Tasks, 30)
	o.Plain, o.Calls, o.Shape = true, listCalls, shapeForLists
	if o.Only = listFaults; o.Duration == 0 {
		o.Only = []string{"calm"}
	}

	var r ListReport
	synctest.Test(t, func(t *testing.T) { r = runListsInBubble(t, seed, o) })

	return r
}

// shapeForLists gives tasks few runs, of which many fail, and short histories.
func shapeForLists(s *task.Spec) {
	number := int(s.Name[len(s.Name)-1])
	s.Schedule, s.History.Keep, s.Timeout = task.Schedules{"@manual"}, 1+number%4, 0
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "10ms", fmt.Sprint(number % 2)}}}
	if number%3 == 0 {
		s.Schedule = task.Schedules{"*/5 * * * * *"}
	}
}

// lister asks for lists, and keeps what it is shown.
type lister struct {
	*world

	// mu guards the fields below.
	mu     sync.Mutex
	lists  []listcheck.List
	walks  [][]listcheck.List
	broken [][]listcheck.List // by the index of the mutant: its lists
}

// runListsInBubble runs the phases of a simulation: start, a death and a drain, random faults, recovery and judgement.
func runListsInBubble(t *testing.T, seed uint64, o ListOptions) ListReport {
	time.Sleep(time.Until(simulationStart))
	life, end := context.WithCancel(context.WithoutCancel(t.Context()))
	defer end()

	l := &lister{world: newWorld(t, life, seed, o.Options), broken: make([][]listcheck.List, len(mutant.Lists))}
	l.deliveries.wanted = true
	l.weather = weather{requestLost: 20, answerLost: 20, late: 20}
	l.background.Go(func() { l.timeRevisions(life) })
	l.startNodes(seed)
	l.weather = weather{requestLost: 20, answerLost: 20, late: 20}

	busy, calm := context.WithCancel(life)
	l.startCallers(busy, seed, o)

	// While lists are read, a node dies. It comes back and gets shards of another one, which does not notice that, nor what
	// becomes of their tasks, for some seconds.
	l.sleep(6 * time.Second)
	restart := l.killOne(false)
	l.sleep(4 * time.Second)
	notice := l.stallFollower()
	restart(l.world)
	l.sleep(time.Second)
	l.replaceTasks(busy, seed)
	notice()
	l.sleep(2 * time.Second)

	// A node drains and comes back.
	restart = drainOne(l.world)
	l.sleep(4 * time.Second)
	restart(l.world)
	l.sleep(2 * time.Second)

	l.endSessionUnseen()
	l.sleep(2 * time.Second)

	if o.Duration > 0 {
		l.injectFaults()
	}

	l.endFaults()
	l.sleep(5 * time.Second)
	calm()
	l.requireCurrentList()

	l.stopProcesses()
	end()
	l.background.Wait()
	l.etcd.Close()
	l.store.Close()

	return l.buildReport(seed)
}

// startCallers starts users that change tasks, and those that list them, until ctx ends.
func (l *lister) startCallers(ctx context.Context, seed uint64, o ListOptions) {
	draws := func() *rand.Rand { return rand.New(rand.NewPCG(seed, l.rng.Uint64())) }

	for i := range apiUsers {
		u := &user{world: l.world, account: l.accounts[i], rng: draws()}
		l.background.Go(func() { u.makeCalls(ctx) })
	}

	dismisser := &user{world: l.world, account: l.accounts[0], rng: draws()}
	l.background.Go(func() { l.dismissRuns(ctx, dismisser) })

	for i := range o.Askers {
		a := &asker{lister: l, name: fmt.Sprintf("asker %d", i), rng: draws()}
		l.background.Go(func() { a.askAll(ctx) })
	}

	for i := range o.Readers {
		r := &reader{lister: l, name: fmt.Sprintf("reader %d", i), rng: draws()}
		l.background.Go(func() { r.readAll(ctx) })
	}
}

// replaceTasks deletes many tasks within three seconds, and creates as many.
func (l *lister) replaceTasks(ctx context.Context, seed uint64) {
	u := &user{world: l.world, account: l.accounts[0], rng: rand.New(rand.NewPCG(seed, l.rng.Uint64()))}
	until := time.Now().Add(3 * time.Second)

	for _, call := range []string{"delete", "apply"} {
		for i := 0; i < l.opts.Tasks && (call == "apply" || time.Now().Before(until)); i++ {
			u.makeCall(ctx, call)
		}
		l.sleep(time.Until(until))
	}
}

// stallFollower stalls the watches of a node that does not lead. It returns a function that ends this.
func (l *lister) stallFollower() (end func()) {
	res, err := l.etcd.Get(l.life, l.admin.Keys().Leader(), clientv3.WithFirstCreate()...)
	if err != nil || len(res.Kvs) == 0 {
		return func() {}
	}

	for _, name := range l.names {
		if n := l.nodes[name]; n.proc != nil && string(res.Kvs[0].Value) != name {
			l.logLine("> the watches of %s stall", name)
			link := n.proc.link
			link.setStalled(true)

			return func() { link.setStalled(false) }
		}
	}

	return func() {}
}

// endSessionUnseen ends the session of a node whose watches stall. Until it cannot renew its lease, the node and the new
// owners of its shards answer for them.
func (l *lister) endSessionUnseen() {
	n := l.someNode()
	if n == nil {
		return
	}

	res, err := l.etcd.Get(l.life, l.admin.Keys().Node(n.name))
	if err != nil || len(res.Kvs) == 0 {
		return
	}

	l.logLine("> the session of %s ends, and its watches stall", n.name)
	link := n.proc.link
	link.setStalled(true)
	l.store.Revoke(clientv3.LeaseID(res.Kvs[0].Lease))
	l.sleep(3 * time.Second)
	link.setStalled(false)
}

// dismissRuns dismisses dead runs until ctx ends.
func (l *lister) dismissRuns(ctx context.Context, u *user) {
	for clock.Sleep(ctx, durationBetween(u.rng, 500*time.Millisecond, 3*time.Second)) {
		if name, id := u.someDead(); id != "" && u.requestByPath(ctx, u.anyHost(), http.MethodPost, taskPath(name, "runs/"+id+"/dismiss"), nil, nil) == nil {
			u.countReached("dead run dismissed")
		}
	}
}

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
		if list, _, ok := a.ask(ctx, q); ok && len(list.Missing) > 0 {
			clock.Sleep(ctx, durationBetween(a.rng, 0, 200*time.Millisecond))
		}
	}
}

// walkPages reads all pages of a list by name.
func (a *asker) walkPages(ctx context.Context, q question) {
	var pages []listcheck.List

	for {
		list, page, ok := a.ask(ctx, q)
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

// ask asks a question, and keeps what is answered, and what each mutant would have answered. It returns false if ctx has
// ended.
func (a *asker) ask(ctx context.Context, q question) (listcheck.List, readmodel.Page, bool) {
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

	answers := mutant.Asked{Query: query, Shards: a.opts.Shards, First: inOrder(first), Final: inOrder(final), Opening: a.openingShards(final)}
	shown := time.Now()
	page := answers.Merge()
	list := a.listOf(q, asked, shown, &page)

	broken := make([]listcheck.List, len(mutant.Lists))
	for i, m := range mutant.Lists {
		p := m.Merge(&answers)
		broken[i] = a.listOf(q, asked, shown, &p)
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	a.lists = append(a.lists, list)
	for i := range broken {
		a.broken[i] = append(a.broken[i], broken[i])
	}

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

// answerWithin is how long an asker waits for a node.
const answerWithin = time.Second

// askNodes asks processes at the same time. without contains, by node, the shards that it is to leave out. The result
// contains the answers of the nodes that have answered.
func (a *asker) askNodes(ctx context.Context, q *readmodel.Query, processes []*process, without map[string][]int) map[string]readmodel.NodeAnswer {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
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
		return durationBetween(a.rng, 0, answerWithin/2)
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

// openingShards returns, by node that has answered, the shards that it owns and does not answer for, as if they were
// empty.
func (a *asker) openingShards(answers map[string]readmodel.NodeAnswer) map[string][]readmodel.ShardAnswer {
	res, err := a.etcd.Get(a.life, a.admin.Keys().Owners(), clientv3.WithPrefix())
	if err != nil {
		return nil
	}

	opening := map[string][]readmodel.ShardAnswer{}
	for _, o := range record.DecodeOwners(a.admin.Keys(), res.Kvs) {
		answer, answered := answers[o.Node]
		if answered && !slices.ContainsFunc(answer.Shards, func(s readmodel.ShardAnswer) bool { return s.Shard == o.Shard }) {
			opening[o.Node] = append(opening[o.Node], readmodel.ShardAnswer{Shard: o.Shard, Owner: o.Fence})
		}
	}

	return opening
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
			v = url.Values{string(filter): {"true"}, "brief": {"true"}, "limit": {fmt.Sprint(limit)}}
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
		r.keep(list)

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

// keep keeps a list that the API has shown.
func (r *reader) keep(list listcheck.List) {
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

// requireCurrentList fails if the owners do not answer for all shards although everything is well.
func (l *lister) requireCurrentList() {
	a := &asker{lister: l, name: "last asker", rng: l.rng}

	ok := l.waitUntil(settleTime, func() bool {
		list, _, ok := a.ask(l.life, question{filter: listcheck.All, order: readmodel.ByName, limit: 1000})
		return ok && len(list.Missing) == 0 && !list.Collecting
	})

	if !ok {
		l.t.Errorf("no complete list although all is well:\n%s", strings.Join(l.story, "\n"))
	}
}

// deliveries records what watches have delivered, and when.
type deliveries struct {
	wanted bool // set before the first node starts

	mu  sync.Mutex
	all []delivery
}

// delivery is a response of a watch, or several at one time. Everything up to the revision has been delivered.
type delivery struct {
	at       time.Time
	revision int64
}

// add records a response that is delivered now.
func (d *deliveries) add(r *clientv3.WatchResponse) {
	if !d.wanted || r.Created || r.Err() != nil {
		return
	}

	one := delivery{time.Now(), r.Header.Revision}
	if n := len(r.Events); n > 0 {
		one.revision = r.Events[n-1].Kv.ModRevision
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, one)
}

// delays returns by how much deliveries were late: how long the first change that each of them does not contain had been
// written by then.
func (l *lister) delays() (list []listcheck.Delay) {
	for _, d := range l.deliveries.all {
		if next, ok := l.times[d.revision+1]; ok && next.Before(d.at) {
			list = append(list, listcheck.Delay{At: d.at, By: d.at.Sub(next)})
		}
	}

	return list
}

// buildReport judges all lists, and those of the mutants.
func (l *lister) buildReport(seed uint64) ListReport {
	events := checkEvents(l.store.Events())
	h := listcheck.NewHistory(l.admin.Keys(), events, func(revision int64) time.Time { return l.times[revision] }, l.delays())

	r := ListReport{Seed: seed, Caught: map[string]check.Violation{}, Counts: l.counts}
	for i := range l.lists {
		r.Violations = append(r.Violations, h.CheckList(&l.lists[i])...)
		l.countList(&l.lists[i])
	}
	for _, pages := range l.walks {
		r.Violations = append(r.Violations, h.CheckWalk(pages)...)
		l.counts["list of several pages"]++
	}

	for i, m := range mutant.Lists {
		for j := range l.broken[i] {
			if v := h.CheckList(&l.broken[i][j]); len(v) > 0 {
				r.Caught[m.Name] = v[0]
				break
			}
		}
	}

	l.addChanges(events)
	r.Story = strings.Join(l.story, "\n")

	return r
}

// addChanges adds to the story how the records changed by which lists are judged.
func (l *lister) addChanges(events []check.Event) {
	for _, ev := range events {
		k, ok := l.admin.Keys().ParseShard(ev.Key)
		_, isOwner := l.admin.Keys().ParseOwner(ev.Key)

		if isOwner || ok && (k.Kind == record.KindEntry || k.Kind == record.KindEnded || k.Kind == record.KindDead) {
			l.story = append(l.story, fmt.Sprintf("%s revision %d: %s, deleted %t: %.120s", l.times[ev.Revision].UTC().Format("15:04:05.000"), ev.Revision, ev.Key, ev.Deleted, ev.Value))
		}
	}

	slices.SortStableFunc(l.story, func(a, b string) int { return strings.Compare(a[:min(len(a), 12)], b[:min(len(b), 12)]) })
}

// countList counts what a list shows.
func (l *lister) countList(list *listcheck.List) {
	l.counts["list"]++

	switch {
	case len(list.Missing) > 0:
		l.counts["list with missing shards"]++
	case list.Collecting:
		l.counts["list while the past is read"]++
	default:
		l.counts["complete list"]++
		if list.Filter == listcheck.Failing {
			l.counts["complete list of failing tasks"]++
		}
	}
}
