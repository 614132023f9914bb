package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// probes records what attempts did, independently of what any node believes.
type probes struct {
	mu   sync.Mutex
	log  strings.Builder // in the format of the probe log of real clusters, see check.CheckProbeLog
	runs []*probe
}

// probe is one attempt that started. For an HTTP attempt, that is the arrival of its request.
type probe struct {
	task.Assigned
	node       string
	token      int64
	start, end time.Time // end is when nothing of it was left; zero: it still runs
	permitted  time.Time // when its node allowed the start; zero: at start
}

// noteStart records that an attempt has started.
func (p *probes) noteStart(node string, a task.Assigned, token int64) *probe {
	p.mu.Lock()
	defer p.mu.Unlock()

	one := &probe{Assigned: a, node: node, token: token, start: time.Now()}
	p.runs = append(p.runs, one)
	p.writeLine("START", one)

	return one
}

// noteAsked records that the target of a request asks to wait.
func (p *probes) noteAsked(one *probe) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writeLine("ASK", one)
}

// noteEnd records that nothing is left of an attempt. An attempt that was killed writes no END.
func (p *probes) noteEnd(one *probe, itself bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	one.end = time.Now()

	if itself {
		p.writeLine("END", one)
	}
}

// writeLine adds a line to the probe log. mu is held.
func (p *probes) writeLine(word string, one *probe) {
	fmt.Fprintf(&p.log, "%s %s %d %d %d %s\n", word, one.ID, max(one.Attempt, 1), one.token, time.Now().UnixMilli(), one.node)
}

// findOverlaps finds attempts that were alive at the same time against the rules. Unlike CheckProbeLog it knows
// when killed attempts ended, so it also finds an attempt that is alive beside its own successor (G17).
func (p *probes) findOverlaps(keys record.Keys, events []check.Event) (violations []check.Violation) {
	p.mu.Lock()
	defer p.mu.Unlock()

	activations := check.Activations(keys, events)

	byTask := map[string][]*probe{}
	for _, one := range p.runs {
		name := one.Namespace + "/" + one.Task + "/" + one.UID
		byTask[name] = append(byTask[name], one)
	}

	for _, all := range byTask {
		slices.SortStableFunc(all, func(a, b *probe) int { return a.start.Compare(b.start) })

		// For each attempt b, consider every attempt a that was alive when b started.
		for i, b := range all {
			beside := map[string]bool{}
			for _, a := range all[:i] {
				if !b.start.Before(a.end) && !a.end.IsZero() {
					continue
				}

				if activations[a.attemptID()].Revision < activations[b.attemptID()].Revision {
					beside[runOf(a.ID)] = true
				}

				// The policy that counts is that of the run that became active later.
				later := activations[b.attemptID()]
				if other := activations[a.attemptID()]; other.Revision > later.Revision {
					later = other
				}

				// The same run must not have two live attempts. Two runs may be alive together only if the policy
				// allows it.
				promise := ""

				switch {
				case a.ID == b.ID:
					promise = "G17" // the earlier attempt must be dead
				case later.Overlap != task.OverlapAllow && !check.Siblings(a.ID, b.ID):
					promise = "G8"
				}

				if promise != "" {
					violations = append(violations, check.Violation{
						Promise: promise, Revision: b.token, Task: b.Namespace + "/" + b.Task,
						Message: fmt.Sprintf("run %s, attempt %d on %s (token %d), starts at %s; run %s, attempt %d on %s (token %d), lives from %s to %s",
							b.ID, max(b.Attempt, 1), b.node, b.token, clockTime(b.start), a.ID, max(a.Attempt, 1), a.node, a.token, clockTime(a.start), clockTime(a.end)),
					})
				}
			}

			// Other attempts of the same run do not count for max_active.
			delete(beside, runOf(b.ID))

			// max_active counts the other runs that became active before b and are still alive.
			if most := activations[b.attemptID()].MaxActive; most > 0 && len(beside) >= most {
				violations = append(violations, check.Violation{
					Promise: "G8", Revision: b.token, Task: b.Namespace + "/" + b.Task,
					Message: fmt.Sprintf("run %s starts at %s on %s, and processes of %d others live: at most %d may", b.ID, clockTime(b.start), b.node, len(beside), most),
				})
			}
		}
	}

	return violations
}

// runOf returns the run whose limits count: for a part, its parent.
func runOf(id string) string {
	if parent, _, part := task.ParentOf(id); part {
		return parent
	}
	return id
}

// permittedAt returns when the attempt's node allowed its start.
func (p *probe) permittedAt() time.Time {
	if p.permitted.IsZero() {
		return p.start
	}
	return p.permitted
}

func (p *probe) attemptID() check.AttemptID {
	return check.AttemptID{Task: p.Namespace + "/" + p.Task, Run: p.ID, Token: p.token}
}

// judgeFrozenStarts finds processes that start on a node that has confirmed the freeze in force (G21). It uses the
// one clock that the whole simulation has, so it is exact whatever the nodes' clocks show.
func (w *world) judgeFrozenStarts(keys record.Keys, events []check.Event) (violations []check.Violation) {
	w.probes.mu.Lock()
	defer w.probes.mu.Unlock()

	var freezes task.Freezes
	var mod int64
	obeyed := map[string]int64{}
	starts := slices.SortedStableFunc(slices.Values(w.probes.runs), func(a, b *probe) int { return a.permittedAt().Compare(b.permittedAt()) })

	// judge checks the starts before an instant with the freezes and confirmations of the events so far.
	judge := func(until time.Time) {
		for ; len(starts) > 0 && (until.IsZero() || starts[0].permittedAt().Before(until)); starts = starts[1:] {
			one := starts[0]
			if z := freezes.Of(one.Namespace); z != nil && obeyed[one.node] >= mod {
				violations = append(violations, check.Violation{
					Promise: "G21", Revision: one.token, Task: one.Namespace + "/" + one.Task,
					Message: fmt.Sprintf("run %s starts at %s on node %s, which has said that it obeys the freeze at revision %d", one.ID, clockTime(one.permittedAt()), one.node, mod),
				})
			}
		}
	}

	// Walk through the changes of freezes and nodes. Before each, judge the starts that happened until then.
	for _, e := range events {
		node, isNode := strings.CutPrefix(e.Key, keys.Nodes())
		if !isNode && e.Key != keys.Freezes() {
			continue
		}

		judge(w.times[e.Revision])

		switch {
		case !isNode && e.Deleted:
			freezes, mod = task.Freezes{}, 0
		case !isNode:
			freezes, mod = task.Freezes{}, e.ModRevision
			if err := json.Unmarshal(e.Value, &freezes); err != nil {
				w.t.Error(err)
			}
		case e.Deleted:
			delete(obeyed, node)
		default:
			var n task.Node
			if err := json.Unmarshal(e.Value, &n); err != nil {
				w.t.Error(err)
			}
			obeyed[node] = n.Froze
		}
	}

	judge(time.Time{})

	return violations
}

// judgeLosses finds attempts that show a sign of life after they were declared lost: a process, or a request that arrives
// (G17). It uses the one clock of the simulation.
func (w *world) judgeLosses(keys record.Keys, events []check.Event) (violations []check.Violation) {
	losses := check.Losses(keys, events)

	w.probes.mu.Lock()
	defer w.probes.mu.Unlock()

	for _, one := range w.probes.runs {
		rev, lost := losses[one.attemptID()]
		if at := w.times[rev]; lost && (one.end.IsZero() || one.end.After(at)) {
			violations = append(violations, check.Violation{
				Promise: "G17", Revision: rev, Task: one.Namespace + "/" + one.Task,
				Message: fmt.Sprintf("run %s, attempt %d on %s (token %d), was declared lost at %s, and lived from %s to %s",
					one.ID, max(one.Attempt, 1), one.node, one.token, clockTime(at), clockTime(one.start), clockTime(one.end)),
			})
		}
	}

	return violations
}

// timeRevisions records when each revision was written, until ctx ends.
func (w *world) timeRevisions(ctx context.Context) {
	for r := range w.etcd.Watch(ctx, w.admin.Keys().Root(), clientv3.WithPrefix(), clientv3.WithRev(1)) {
		w.mu.Lock()
		for _, e := range r.Events {
			w.times[e.Kv.ModRevision] = time.Now()
		}
		w.mu.Unlock()
	}
}

func clockTime(t time.Time) string { return t.UTC().Format("15:04:05.000") }
