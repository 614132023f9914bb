package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// The workload of ledgers: histories are so short that most records move to the ledgers, while users change for how long
// both are kept, write chunks by hand, and delete and create tasks. Nodes die in each phase of a fold.

// RareTick makes a trim follow each end of a run. A task is trimmed after as many records as it has ticks in the ten minutes
// that follow the first tick after a fixed instant in January, and the other schedules of these tasks have no ticks then.
const RareTick = "0 0 0 6 1 *"

// keepLedger gives a task a short history, and often many folds.
func keepLedger(s *task.Spec, r *rand.Rand) {
	s.History = drawHistory(r)

	if r.IntN(4) == 0 {
		return
	}

	s.Schedule = task.Schedules{RareTick, pickRandom(r, []string{"* * * * 11 *", "*/2 * * * 11 *", "*/3 * * * 11 *"})}
	s.Jitter, s.Start, s.TTL, s.MaxRuns, s.PauseAfter = 0, task.Time{}, 0, 0, 0
	if s.Action.Process != nil && r.IntN(2) == 0 {
		s.Timeout, s.Action.Process.Command = 0, []string{"sim", pickRandom(r, []string{"50ms", "700ms", "3s"}), pickRandom(r, []string{"0", "0", "1"})}
	}
}

// drawHistory draws how many records are kept, and for how long the ledger remembers the others.
func drawHistory(r *rand.Rand) task.History {
	seconds := func(n int) *task.Duration { return new(task.Duration(time.Duration(n) * time.Second)) }
	h := task.History{Keep: 1 + r.IntN(3), Record: task.RecordAll}

	if r.IntN(3) == 0 {
		h.KeepFor = *seconds(5 + r.IntN(15))
	}
	if r.IntN(5) == 0 {
		h.Record = task.RecordFailures
	}
	h.Ledger = pickRandom(r, []*task.Duration{nil, nil, nil, seconds(0), seconds(20), seconds(86400)})

	return h
}

// editHistory changes how many records of a task are kept, and for how long.
func (u *user) editHistory(ctx context.Context, c *client.Client, name, mark string) (client.Task, error) {
	h := drawHistory(u.rng)
	fields := map[string]any{"keep": h.Keep, "keep_for": h.KeepFor, "record": h.Record, "ledger": h.Ledger}

	return u.patchTask(ctx, c, name, mark, map[string]any{"history": fields})
}

// setLedger changes for how long the ledgers of the cluster remember ticks.
func (u *user) setLedger(ctx context.Context, c *client.Client) error {
	days := pickRandom(u.rng, []int{30, 30, 1, 0})
	_, err := c.Cluster.UpdateSettings(ctx, client.ClusterSettings{Ledger: new(task.Duration(time.Duration(days) * 24 * time.Hour))})

	return err
}

// spoilLedger writes a chunk that no node has written as the newest one: one that cannot be read, or of another task.
func (u *user) spoilLedger(ctx context.Context, name string) error {
	id := time.Now().UTC().Format("20060102T150405.000Z")
	value := pickRandom(u.rng, []string{"", "garbage", `{"uid":"foreign","from":"2026-11-20T12:00:00.000Z","ok":[[1,2,2,0,0,0]]}`, `{"uid":"foreign","from":"2026-11-20T12:00:00.000Z","new":1}`})
	_, err := u.etcd.Put(ctx, u.admin.Keys().LedgerChunk(u.taskRef(name), id), value)
	u.countReached("chunk written by hand")

	return err
}

// foldPhase is a request of a fold.
type foldPhase int

const (
	noFold      foldPhase = iota
	listsToFold           // lists the keys of the history
	readsToFold           // reads the records, and the newest chunk
	writesFold            // deletes the records, and writes chunks
)

// foldPhaseOf returns the phase of a fold that a request belongs to. Requests that share a transaction count as what the last
// of them is.
func foldPhaseOf(keys record.Keys, op clientv3.Op) (phase foldPhase) {
	if !op.IsTxn() {
		return noFold
	}

	_, then, _ := op.Txn()
	history, ledger := 0, 0
	for _, o := range then {
		key := string(o.KeyBytes())
		switch {
		case o.IsTxn():
			phase = max(phase, foldPhaseOf(keys, o))
		case strings.HasPrefix(key, keys.Ledgers()) && o.IsPut():
			return writesFold
		case strings.HasPrefix(key, keys.Ledgers()) && o.IsGet():
			ledger++
		case o.IsGet() && strings.Contains(key, "/history/") && !strings.HasSuffix(key, "/"):
			history++
		}
	}

	switch {
	case ledger > 0 && history > 0:
		return max(phase, readsToFold)
	case ledger > 0 && len(then) == 2:
		return max(phase, listsToFold)
	}

	return phase
}

// trap kills a node when it makes a request.
type trap struct {
	matches func(clientv3.Op) bool
	after   bool // when the request has been applied, and its answer is under way
	caught  chan struct{}
}

// setTrap sets a trap for the requests of a link; nil removes it.
func (l *link) setTrap(t *trap) { l.trap.Store(t) }

// springTrap cuts the link off for good if a request is the one for which its trap waits.
func (l *link) springTrap(op clientv3.Op, after bool) {
	t := l.trap.Load()
	if t == nil || t.after != after || !t.matches(op) || !l.trap.CompareAndSwap(t, nil) {
		return
	}

	l.setMode(dead)
	close(t.caught)
}

// killInFold kills a node in a random phase of its next fold, and starts it again when the fault ends.
func killInFold(w *world) func(*world) {
	n := w.someNode()
	if n == nil {
		return nil
	}

	phase := foldPhase(1 + w.rng.IntN(int(writesFold)))

	return n.killInTrap(fmt.Sprintf("phase %d of a fold", phase), func(op clientv3.Op) bool { return foldPhaseOf(w.admin.Keys(), op) == phase })
}

// killInTrap kills a node in its next request that matches, and starts it again when the fault ends. what describes the request.
func (n *node) killInTrap(what string, matches func(clientv3.Op) bool) func(*world) {
	w := n.world
	t := &trap{matches: matches, after: w.rng.IntN(2) == 0, caught: make(chan struct{})}
	host := w.rng.IntN(4) == 0
	n.proc.link.setTrap(t)
	w.waitUntil(10*time.Second, func() bool { return isClosed(t.caught) })
	n.proc.link.setTrap(nil)

	if !isClosed(t.caught) {
		return nil
	}

	w.countReached(fmt.Sprintf("killed in %s, after it: %t", what, t.after))
	n.killDaemon(host)

	return func(*world) { n.restartWhenClean() }
}
