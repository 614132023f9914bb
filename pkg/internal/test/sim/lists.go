package sim

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/listcheck"
	"github.com/carillonhq/carillon/pkg/internal/test/mutant"
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
