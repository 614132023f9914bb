package alert

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// modelMutant is a fault in how the evaluation is used, which the model must find.
type modelMutant string

const (
	noMutant        modelMutant = ""
	rangeUncompared modelMutant = "range-uncompared" // the commit does not compare that nothing newer was written
	oldDeadRun      modelMutant = "old-dead-run"     // dead runs from before the last success count
	retryCloses     modelMutant = "retry-closes"     // an alert is closed while a run is started again
	rowOnly         modelMutant = "row-only"         // the evidence is what the owner knows, not what is read
	unappliedIndex  modelMutant = "unapplied-index"  // the owner says that nothing runs before it knows the revision of the reading
	deadUncompared  modelMutant = "dead-uncompared"  // an opening does not compare the dead run
	modNotCreate    modelMutant = "mod-not-create"   // dead runs count by when they were last written
)

// modelWorld is etcd with the records of one task with failures: 1.
type modelWorld struct {
	mutant modelMutant
	random *rand.Rand

	revision, ids int64
	history       map[int64]modelEnd  // by run
	dead          map[int64]modelDead // by run
	busy          map[int64]bool      // active and waiting runs
	lastSuccess   int64               // its create revision, also after it was trimmed
	alert         *task.Alert

	past    []modelSnapshot // at every revision
	pending []modelWrite    // writes of the evaluator that are under way
	faults  map[string]bool
}

type modelEnd struct {
	create int64
	state  task.State
}

type modelDead struct{ create, mod int64 }

// modelSnapshot is what etcd holds at a revision.
type modelSnapshot struct {
	revision int64
	history  map[int64]modelEnd
	dead     map[int64]modelDead
	busy     bool
	alert    *task.Alert
}

// modelWrite is a conditional write of the evaluator.
type modelWrite struct {
	change Change
	mod    int64 // the mod revision of the alert that was read
	at     int64 // the revision of the evidence
}

// written notes a change of etcd.
func (w *modelWorld) written() {
	s := modelSnapshot{revision: w.revision, history: maps.Clone(w.history), dead: maps.Clone(w.dead), busy: len(w.busy) > 0}
	if w.alert != nil {
		a := *w.alert
		s.alert = &a
	}
	w.past = append(w.past, s)
}

// isFailing is the truth.
func (w *modelWorld) isFailing() bool {
	return len(w.dead) > 0 && slices.ContainsFunc(slices.Collect(maps.Values(w.dead)), func(d modelDead) bool { return d.create > w.lastSuccess })
}

// isOpen reports whether the alert is open.
func (w *modelWorld) isOpen() bool { return w.alert != nil && w.alert.IsOpen() }

const modelTask = "k3f9"

// modelStart is the time of revision 0. Each revision is a second later.
var modelStart = time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)

func modelTime(revision int64) time.Time {
	return modelStart.Add(time.Duration(revision) * time.Second)
}

func modelRun(id int64) string { return task.RunID(modelTime(id), modelTask) }

// evidenceOf returns what the evaluator reads of a snapshot.
func (w *modelWorld) evidenceOf(s modelSnapshot) *Evidence {
	e := &Evidence{Namespace: "shop", Task: "sync", Revision: s.revision, Entry: &task.Entry{UID: modelTask, Alerts: &task.Alerts{Notify: []string{"slack"}}}}

	for id, end := range s.history {
		e.Records = append(e.Records, Record{ID: modelRun(id), Create: end.create, Mod: end.create})
	}
	slices.SortFunc(e.Records, func(a, b Record) int { return cmp.Compare(b.Mod, a.Mod) })

	for id, d := range s.dead {
		dead := Dead{Run: modelRun(id), Create: d.create, Mod: d.mod}
		switch w.mutant {
		case oldDeadRun:
			dead.Create += 1 << 40
		case modNotCreate:
			dead.Create = d.mod
		}
		e.Dead = append(e.Dead, dead)
	}

	return e
}

// judge evaluates a snapshot, and reads as many records as that takes.
func (w *modelWorld) judge(s modelSnapshot, e *Evidence) *Change {
	byRun := map[string]modelEnd{}
	for id, end := range s.history {
		byRun[modelRun(id)] = end
	}

	now := modelTime(s.revision + 100)
	for range 20 {
		v, needs := Evaluate(e, task.AlertFailures, s.alert, now)
		if !needs.Any() {
			return Decide(e, task.AlertFailures, s.alert, v, now)
		}

		for _, i := range needs.Records {
			r := &e.Records[i]
			r.IsRead, r.Run = true, &task.Run{ID: r.ID, State: byRun[r.ID].state, EndedAt: task.At(modelTime(r.Create))}
		}
	}

	panic("the evaluation does not end")
}

// commit applies a write of the evaluator if what it compares holds, and checks that it was right.
func (w *modelWorld) commit(c modelWrite) {
	mod := int64(0)
	if w.alert != nil {
		mod = w.alert.Mod
	}
	if c.mod != mod {
		return
	}

	if d := c.change.Dead; d != nil && w.mutant != deadUncompared && w.mutant != rowOnly {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(w.dead)), func(id int64) bool { return modelRun(id) == d.Run }) {
			return
		}
	}

	newest := int64(0)
	for _, end := range w.history {
		newest = max(newest, end.create)
	}
	for _, d := range w.dead {
		newest = max(newest, d.mod)
	}
	if w.mutant != rangeUncompared && newest > c.at {
		return
	}

	switch closed := c.change.Alert.Closed; {
	case closed == nil && !w.isFailing():
		w.faults["A1: opened, and not failing"] = true
	case closed != nil && w.isFailing():
		w.faults["A1: closed, and failing"] = true
	case closed != nil && closed.Why == task.AlertDismissed && slices.Contains(slices.Collect(maps.Values(w.busy)), true):
		w.faults["A1: closed, and a run was started again"] = true
	}

	w.revision++
	a := c.change.Alert
	a.Mod = w.revision
	w.alert = &a
	w.written()
}

// dismissal is one that has marked its dead run and has not deleted it yet.
type dismissal struct {
	run, mod int64
	isOld    bool // by a version that knows no alerts
}

// step makes one random change, or lets the evaluator visit the task.
func (w *modelWorld) step(quiet bool, d **dismissal) {
	x := w.random.Float64()

	switch {
	case !quiet && x < .12 && len(w.busy) < 2:
		w.ids++
		w.revision++
		w.busy[w.ids] = false
		w.written()
	case x < .3 && len(w.busy) > 0:
		w.endRun()
	case !quiet && x < .36 && len(w.dead) > 0: // a retry deletes the dead run and queues another one
		w.revision++
		run := w.anyDead()
		w.ids++
		w.busy[w.ids] = w.dead[run].create > w.lastSuccess
		delete(w.dead, run)
		w.written()
	case !quiet && x < .46 && len(w.dead) > 0 && *d == nil:
		w.revision++
		run := w.anyDead()
		w.dead[run] = modelDead{w.dead[run].create, w.revision}
		*d = &dismissal{run, w.revision, w.random.Float64() < .2}
		w.written()
	case *d != nil && x < .6:
		w.dismiss(**d)
		*d = nil
	case !quiet && x < .63:
		w.trim()
	case x < .66 && len(w.pending) > 0:
		i := w.random.IntN(len(w.pending))
		c := w.pending[i]
		w.pending = slices.Delete(w.pending, i, i+1)
		w.commit(c)
	default:
		w.visit(quiet)
	}
}

// anyDead returns one of the dead runs.
func (w *modelWorld) anyDead() int64 {
	all := slices.Sorted(maps.Keys(w.dead))
	return all[w.random.IntN(len(all))]
}

// endRun ends an active run.
func (w *modelWorld) endRun() {
	all := slices.Sorted(maps.Keys(w.busy))
	run := all[w.random.IntN(len(all))]
	delete(w.busy, run)

	w.revision++
	state := []task.State{task.Succeeded, task.Failed, task.Failed, task.Cancelled}[w.random.IntN(4)]
	w.history[run] = modelEnd{w.revision, state}
	switch state {
	case task.Failed:
		w.dead[run] = modelDead{w.revision, w.revision}
	case task.Succeeded:
		w.lastSuccess = w.revision
	}
	w.written()
}

// dismiss ends a dismissal, unless its node dies before. As in the store, it closes the alert if no other dead run counts.
func (w *modelWorld) dismiss(d dismissal) {
	if w.random.Float64() < .15 || w.dead[d.run].mod != d.mod {
		return
	}

	isLast := w.isOpen()
	for run, dead := range w.dead {
		if run != d.run && w.alert != nil && dead.create > w.alert.Base {
			isLast = false
		}
	}

	w.revision++
	delete(w.dead, d.run)
	if isLast && !d.isOld {
		a := *w.alert
		a.Mod, a.Closed = w.revision, &task.AlertClose{Why: task.AlertDismissed, By: task.NewActor("ann")}
		w.alert = &a
	}
	w.written()
}

// trim deletes old records as the trimmer does: not the last success while there is a dead run from before it.
func (w *modelWorld) trim() {
	all := slices.SortedFunc(maps.Keys(w.history), func(a, b int64) int { return cmp.Compare(w.history[b].create, w.history[a].create) })
	if len(all) <= 5 {
		return
	}

	oldest := int64(0)
	for _, d := range w.dead {
		if oldest == 0 || d.create < oldest {
			oldest = d.create
		}
	}

	w.revision++
	for _, run := range all[5:] {
		if keeps := w.history[run].create == w.lastSuccess && oldest != 0 && oldest <= w.lastSuccess; !keeps {
			delete(w.history, run)
		}
	}
	w.written()
}

// visit lets the evaluator visit the task. What the owner knows may be older than what is read, and the write may arrive later.
func (w *modelWorld) visit(quiet bool) {
	read := w.past[len(w.past)-1]
	row := read
	if !quiet {
		row = w.past[max(0, len(w.past)-1-w.random.IntN(5))]
	}
	if w.mutant == rowOnly {
		read = row
	}

	e := w.evidenceOf(read)
	e.Idle = !row.busy && (row.revision >= read.revision || w.mutant == unappliedIndex) || w.mutant == retryCloses

	c := w.judge(read, e)
	if c == nil {
		return
	}

	write := modelWrite{change: *c, at: read.revision}
	if read.alert != nil {
		write.mod = read.alert.Mod
	}
	if !quiet && w.random.Float64() < .3 {
		w.pending = append(w.pending, write)
		return
	}
	w.commit(write)
}

// walkFailures makes a number of random steps, lets everything become quiet, and returns the faults.
func walkFailures(seed uint64, mutant modelMutant) (faults []string) {
	w := &modelWorld{
		mutant: mutant, random: rand.New(rand.NewPCG(seed, 1)), faults: map[string]bool{},
		history: map[int64]modelEnd{}, dead: map[int64]modelDead{}, busy: map[int64]bool{},
	}
	w.written()

	const steps = 300
	var d *dismissal
	for i := range steps + 60 {
		w.step(i >= steps, &d)
	}

	if len(w.busy) == 0 && w.isOpen() != w.isFailing() {
		w.faults[fmt.Sprintf("when all is quiet: open %t, failing %t", w.isOpen(), w.isFailing())] = true
	}

	return slices.Sorted(maps.Keys(w.faults))
}

// Random walks of a task that fails, succeeds, is retried and dismissed, with late writes and an owner that lags behind. What
// an evaluation writes is so at its revision, and when all is quiet, the alert is open if the task is failing.
//
// Verifies: G57
func TestEvaluate_WalksOfFailures(t *testing.T) {
	t.Parallel()

	for seed := range uint64(500) {
		if faults := walkFailures(seed, noMutant); len(faults) > 0 {
			t.Fatalf("walk %d: %q", seed, faults)
		}
	}
}

// The walks find each fault in how evaluations are used.
func TestEvaluate_WalksFindMutants(t *testing.T) {
	t.Parallel()

	for _, mutant := range []modelMutant{rangeUncompared, oldDeadRun, retryCloses, rowOnly, unappliedIndex, deadUncompared, modNotCreate} {
		t.Run(string(mutant), func(t *testing.T) {
			t.Parallel()

			for seed := range uint64(1000) {
				if len(walkFailures(seed, mutant)) > 0 {
					return
				}
			}

			t.Error("no walk finds it")
		})
	}
}
