package sim

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/listcheck"
	"github.com/carillonhq/carillon/pkg/internal/test/mutant"
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
	Counts     map[string]int // how often something was reached
	Story      string         // what happened, with the nodes' logs and the changes of tasks
}

// listFaults are the faults that follow on the death of a node and the drain of another one.
var listFaults = []string{"kill", "kill host", "drain", "join", "cut", "held", "deaf", "stall watches", "break watches", "revoke a lease", "compact"}

// RunLists simulates a cluster whose tasks are listed without pause while nodes are killed, drained and cut off. It
// judges each list by the history (G30).
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

// lister asks for lists, and keeps what it is shown.
type lister struct {
	*world

	// mu guards the fields below.
	mu    sync.Mutex
	lists []listcheck.List
	walks [][]listcheck.List
}

// runListsInBubble runs the phases of a simulation: start, a death and a drain, random faults, recovery and judgement.
func runListsInBubble(t *testing.T, seed uint64, o ListOptions) ListReport {
	time.Sleep(time.Until(simulationStart))
	life, end := context.WithCancel(context.WithoutCancel(t.Context()))
	defer end()

	l := &lister{world: newWorld(t, life, seed, o.Options)}
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

// requireCurrentList fails if the owners do not answer for all shards although everything is well.
func (l *lister) requireCurrentList() {
	a := &asker{lister: l, name: "last asker", rng: l.rng}

	ok := l.waitUntil(settleTime, func() bool {
		list, _, ok := a.askOwners(l.life, question{filter: listcheck.All, order: readmodel.ByName, limit: 1000})
		return ok && len(list.Missing) == 0 && !list.Collecting
	})

	if !ok {
		l.t.Errorf("no complete list although all is well:\n%s", strings.Join(l.story, "\n"))
	}
}

// listCalls is what users do while lists are read.
var listCalls = []string{"apply", "apply", "pause", "resume", "pause until", "delete", "re-create", "trigger", "trigger", "trigger", "retry"}

// shapeForLists gives tasks few runs, many of which fail, and short histories.
func shapeForLists(s *task.Spec) {
	number := int(s.Name[len(s.Name)-1])
	s.Schedule, s.History.Keep, s.Timeout = task.Schedules{"@manual"}, 1+number%4, 0
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "10ms", fmt.Sprint(number % 2)}}}
	if number%3 == 0 {
		s.Schedule = task.Schedules{"*/5 * * * * *"}
	}
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

// dismissRuns dismisses dead runs until ctx ends.
func (l *lister) dismissRuns(ctx context.Context, u *user) {
	for clock.Sleep(ctx, durationBetween(u.rng, 500*time.Millisecond, 3*time.Second)) {
		if name, id := u.someDead(); id != "" && u.requestByPath(ctx, u.anyHost(), http.MethodPost, taskPath(name, "runs/"+id+"/dismiss"), nil, nil) == nil {
			u.countReached("dead run dismissed")
		}
	}
}

// deliveryDelays returns by how much deliveries were late: how long the first change that each of them does not contain
// had been written by then.
func (l *lister) deliveryDelays() (list []listcheck.Delay) {
	for _, d := range l.deliveries.all {
		if next, ok := l.times[d.revision+1]; ok && next.Before(d.at) {
			list = append(list, listcheck.Delay{At: d.at, By: d.at.Sub(next)})
		}
	}

	return list
}

// buildReport judges all lists.
func (l *lister) buildReport(seed uint64) ListReport {
	defer mutant.Suspend()()

	events := checkEvents(l.store.Events())
	h := listcheck.NewHistory(l.admin.Keys(), events, func(revision int64) time.Time { return l.times[revision] }, l.deliveryDelays())

	r := ListReport{Seed: seed, Counts: l.counts}
	for i := range l.lists {
		r.Violations = append(r.Violations, h.CheckList(&l.lists[i])...)
		l.countList(&l.lists[i])
	}
	for _, pages := range l.walks {
		r.Violations = append(r.Violations, h.CheckWalk(pages)...)
		l.counts["list of several pages"]++
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
