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

// The walks below are random histories of a task with max_pause, max_duration and max_lateness, with a tick every minute. Its owner
// decides ticks late or not at all, runs wait, start, are repeated and hang, people pause the task and freeze its namespace, and the shard
// changes its owner. What the evaluator knows of active runs may be old, and its writes may arrive late.
//
// The judge knows nothing of Evaluate. It checks that what is written was so at its revision (G57), and that when nothing changes any
// more, exactly those alerts are open whose expectation is not met (G58).

// limitMutant is a fault in how the evaluation is used, or in what it is given, which the walks must find.
type limitMutant string

const (
	noLimitMutant       limitMutant = ""
	entryIgnored        limitMutant = "entry-uncompared"
	freezesIgnored      limitMutant = "freezes-uncompared"
	guardIgnored        limitMutant = "guard-uncompared"
	ownerTrusted        limitMutant = "incomplete-is-complete" // the owner says that it knows all active runs although it is behind
	attemptsForgotten   limitMutant = "attempts-forgotten"     // a retry begins the time of a run again
	freezeEndsForgotten limitMutant = "freeze-ends-forgotten"
	openingForgotten    limitMutant = "opening-forgotten" // what passed without an owner is judged at once
	pauseEndsForgotten  limitMutant = "pause-ends-forgotten"
)

// limitKinds are the expectations of the walks.
var limitKinds = [...]task.AlertKind{task.AlertMaxPause, task.AlertMaxDuration, task.AlertMaxLateness}

const (
	limitOfPause    = 4 * time.Minute
	limitOfDuration = 3 * time.Minute
	limitOfLateness = 2 * time.Minute
)

// limitState is what etcd holds at a revision. Runs in it never change.
type limitState struct {
	revision int64
	commits  int // of the owner, which alone makes runs active

	entry      task.Entry
	entryMod   int64
	updated    time.Time // when a person has last changed the task
	freezes    task.Freezes
	freezesMod int64
	ended      map[string]limitEnd  // by run
	active     map[string]ActiveRun // waiting and active runs, by run
	alerts     [len(limitKinds)]*task.Alert
}

type limitEnd struct {
	create int64
	run    *task.Run
}

// limitWrite is a conditional write of the evaluator.
type limitWrite struct {
	kind   int
	change Change
	mod    int64      // of the alert that was read
	read   limitState // which the evaluation has seen
	at     time.Time  // of the evaluation
	opened time.Time  // of the shard
}

type limitWorld struct {
	limitState
	mutant limitMutant
	random *rand.Rand
	now    time.Time

	isAway  bool      // the shard has no owner
	opened  time.Time // when the present owner has opened the shard
	decided time.Time // up to which the ticks are decided
	isStuck bool      // at the end: no run starts
	hangs   bool      // at the end: no run ends

	past    []limitState
	pending []limitWrite
	faults  map[string]bool
}

// write notes a change of etcd.
func (w *limitWorld) write(change func(revision int64)) {
	w.revision++
	w.ended, w.active = maps.Clone(w.ended), maps.Clone(w.active)
	change(w.revision)
	w.past = append(w.past, w.limitState)
}

// pauseAt returns the pause by a person that is in force at an instant, or nil.
func (s *limitState) pauseAt(at time.Time) *task.Pause {
	if !s.entry.Paused {
		return nil
	}
	p := s.entry.Own.Pauses[len(s.entry.Own.Pauses)-1]
	if isOver := !p.Until.IsZero() && at.After(p.Until.Time); p.By.Is(task.PausedByFailures) || isOver {
		return nil
	}

	return &p
}

// hasTick reports whether the task has a tick at an instant.
func (s *limitState) hasTick(at time.Time) bool {
	if s.entry.Paused {
		p := s.entry.Own.Pauses[len(s.entry.Own.Pauses)-1]
		if p.Until.IsZero() || !at.After(p.Until.Time) {
			return false
		}
	}

	return at.After(s.entry.From.Time)
}

// limitStart returns when a run has first started; zero: it has not.
func limitStart(r *task.Run) time.Time {
	if len(r.Attempts) > 0 {
		return r.Attempts[0].StartedAt.Time
	}
	return r.StartedAt.Time
}

// isNotMet is the truth about an expectation at an instant. isClear is false if it is neither met nor not met.
func (s *limitState) isNotMet(kind task.AlertKind, at, opened time.Time) (notMet, isClear bool) {
	switch kind {
	case task.AlertMaxPause:
		p := s.pauseAt(at)
		return p != nil && at.Sub(p.Since.Time) >= limitOfPause, true
	case task.AlertMaxDuration:
		for _, r := range s.active {
			if start := limitStart(r.Run); !start.IsZero() && at.Sub(start) >= limitOfDuration {
				return true, true
			}
		}
		return false, true
	}

	return s.isLate(at, opened)
}

// isLate is the truth about max_lateness.
func (s *limitState) isLate(at, opened time.Time) (notMet, isClear bool) {
	if s.pauseAt(at) != nil {
		return false, true
	}
	if len(s.freezes.Holding) > 0 {
		return false, false
	}

	tick := at.Add(-limitOfLateness - judgeAfter).Truncate(time.Minute)
	for _, e := range s.ended {
		if e.run.ScheduledTime.Before(tick) {
			continue
		}
		if !limitStart(e.run).IsZero() {
			return false, true
		}
	}
	for _, r := range s.active {
		if !r.Run.ScheduledTime.Before(tick) && !limitStart(r.Run).IsZero() {
			return false, true
		}
	}

	if end, ok := s.ended[modelTickID(tick)]; ok && end.run.State != task.Missed {
		return false, false // it was skipped, or somebody has cancelled it
	}
	if _, waits := s.active[modelTickID(tick)]; !waits && !tick.After(s.entry.From.Time) {
		return false, false
	}
	for _, z := range s.freezes.Past {
		if !tick.After(z.Ended.Time) {
			return false, false
		}
	}
	if s.entry.Own != nil {
		for _, p := range s.entry.Own.Pauses {
			until := p.Until.Time
			if !p.Ended.IsZero() {
				until = p.Ended.Time
			}
			if !p.By.Is(task.PausedByFailures) && !until.IsZero() && !tick.After(until) {
				return false, false
			}
		}
	}

	if judged := tick.Add(limitOfLateness + judgeAfter); judged.Before(opened) {
		return at.Sub(opened) >= CatchUpTime, true
	}

	return true, true
}

func modelTickID(tick time.Time) string { return task.RunID(tick, modelTask) }

// evidenceOf returns what the evaluator reads.
func (w *limitWorld) evidenceOf(s *limitState) *Evidence {
	entry := s.entry
	e := &Evidence{Namespace: "shop", Task: "sync", Revision: s.revision, Entry: &entry, Freezes: &s.freezes, Opened: w.opened}
	for id, end := range s.ended {
		e.Records = append(e.Records, Record{ID: id, Create: end.create, Mod: end.create})
	}
	slices.SortFunc(e.Records, func(a, b Record) int { return cmp.Compare(b.Mod, a.Mod) })

	switch {
	case w.mutant == openingForgotten:
		e.Opened = modelStart
	case w.mutant == freezeEndsForgotten:
		e.Freezes = &task.Freezes{Holding: s.freezes.Holding}
	case w.mutant == pauseEndsForgotten && entry.Own != nil:
		own := *entry.Own
		own.Pauses = slices.Clone(own.Pauses)
		for i := range own.Pauses {
			own.Pauses[i].Until = task.Time{}
		}
		entry.Own = &own
	}

	return e
}

// activeOf returns the active runs of a state that an owner finds: those in the queue, and those in inboxes of which it knows.
func (w *limitWorld) activeOf(s, row *limitState) *ActiveFacts {
	isCurrent := row.commits == s.commits || w.mutant == ownerTrusted
	facts := &ActiveFacts{IsComplete: isCurrent, IsCurrent: isCurrent}
	for _, id := range slices.Sorted(maps.Keys(s.active)) {
		r := s.active[id]
		if known, ok := row.active[id]; r.Node != "" && (!ok || known.Node == "") {
			continue
		}
		if w.mutant == attemptsForgotten {
			copied := *r.Run
			copied.Attempts = nil
			r.Run = &copied
		}
		facts.Runs = append(facts.Runs, r)
	}

	return facts
}

// visit evaluates all expectations. What the owner knows may be older than what is read, and a write may arrive later.
func (w *limitWorld) visit(isQuiet bool) {
	read := w.past[len(w.past)-1]
	row := read
	if !isQuiet {
		row = w.past[max(0, len(w.past)-1-w.random.IntN(4))]
	}

	for k, kind := range limitKinds {
		current := read.alerts[k]
		e := w.evidenceOf(&read)
		c := w.evaluate(e, kind, current, &read, &row)
		if c == nil {
			continue
		}

		write := limitWrite{kind: k, change: *c, read: read, at: w.now, opened: w.opened}
		if current != nil {
			write.mod = current.Mod
		}
		if !isQuiet && w.random.Float64() < .4 {
			w.pending = append(w.pending, write)
		} else {
			w.commit(write)
		}
	}
}

// evaluate evaluates one expectation, and reads as much as that takes.
func (w *limitWorld) evaluate(e *Evidence, kind task.AlertKind, current *task.Alert, read, row *limitState) *Change {
	for range 20 {
		v, needs := Evaluate(e, kind, current, w.now)
		if !needs.Any() {
			return Decide(e, kind, current, v, w.now)
		}

		for _, i := range needs.Records {
			e.Records[i].IsRead, e.Records[i].Run = true, read.ended[e.Records[i].ID].run
		}
		if needs.Active {
			e.Active = w.activeOf(read, row)
		}
		if needs.Spec {
			e.Spec = &SpecFacts{UpdatedAt: read.updated, UpdatedBy: task.NewActor("ann")}
		}
		if needs.Ledger {
			e.Ledger = &LedgerFacts{}
		}
	}

	panic("the evaluation does not end")
}

// commit applies a write of the evaluator if what it compares holds, and checks that it was right.
func (w *limitWorld) commit(c limitWrite) {
	mod := int64(0)
	if current := w.alerts[c.kind]; current != nil {
		mod = current.Mod
	}

	newest := int64(0)
	for _, e := range w.ended {
		newest = max(newest, e.create)
	}

	isGuarded := true
	if g := c.change.Guard; g != nil {
		r, ok := w.active[g.Run.Run.ID]
		isGuarded = ok && r.Node == g.Run.Node && r.Create == g.Run.Create && (g.CreateOnly || r.Mod == g.Run.Mod)
	}

	switch {
	case c.mod != mod,
		c.read.entryMod != w.entryMod && w.mutant != entryIgnored,
		c.read.freezesMod != w.freezesMod && w.mutant != freezesIgnored,
		newest > c.read.revision,
		!isGuarded && w.mutant != guardIgnored:
		return
	}

	w.judge(c)
	w.write(func(revision int64) {
		a := c.change.Alert
		a.Mod = revision
		w.alerts[c.kind] = &a
	})
}

// judge checks a write. An alert about max_lateness compares the run that it is about. Nothing compares that a later one has started
// since the reading, or that a tick without a record was decided, so active runs are judged by what was read.
func (w *limitWorld) judge(c limitWrite) {
	kind, closed := limitKinds[c.kind], c.change.Alert.Closed
	s := w.limitState
	run, isActive := s.active[c.change.Alert.Run]
	if kind == task.AlertMaxLateness {
		s.active = c.read.active
	}
	notMet, isClear := s.isNotMet(kind, c.at, c.opened)

	switch {
	case c.change.Opens && kind == task.AlertMaxLateness && isActive && !limitStart(run.Run).IsZero():
		w.faults["max_lateness opened, and the run has started"] = true
	case c.change.Opens && !notMet:
		w.faults[fmt.Sprintf("%s opened, and is met", kind)] = true
	case closed != nil && kind == task.AlertMaxDuration && isActive:
		w.faults["max_duration closed, and the run has not ended"] = true
	case closed != nil && kind != task.AlertMaxDuration && (notMet || !isClear):
		w.faults[fmt.Sprintf("%s closed as %s, and is not met", kind, closed.Why)] = true
	}
}

// decide lets the owner decide the ticks that are due.
func (w *limitWorld) decide() {
	for tick := w.decided.Add(time.Minute); !tick.After(w.now); tick = tick.Add(time.Minute) {
		w.decided = tick
		if !w.hasTick(tick) {
			continue
		}

		r := &task.Run{ID: modelTickID(tick), ScheduledTime: task.At(tick), Trigger: task.TriggerSchedule, State: task.Queued}
		switch {
		case w.freezes.At("shop", tick) != nil:
			r.State, r.Reason = task.Skipped, task.ReasonFrozen
		case w.now.Sub(tick) > 5*time.Minute:
			r.State, r.Reason = task.Missed, task.ReasonNoOwner
		case !w.isStuck && w.random.Float64() < .2:
			r.State, r.Reason = task.Skipped, task.ReasonOverlap
		}

		w.write(func(revision int64) {
			w.commits++
			if r.State != task.Queued {
				w.ended[r.ID] = limitEnd{revision, r}
				return
			}
			w.active[r.ID] = ActiveRun{Run: r, Create: revision, Mod: revision}
		})
	}
}

// anyRun returns a run that fits, or false if there is none.
func (w *limitWorld) anyRun(fits func(r ActiveRun) bool) (r ActiveRun, ok bool) {
	ids := slices.DeleteFunc(slices.Sorted(maps.Keys(w.active)), func(id string) bool { return !fits(w.active[id]) })
	if len(ids) == 0 {
		return r, false
	}

	return w.active[ids[w.random.IntN(len(ids))]], true
}

// moveRun takes one run a step further.
func (w *limitWorld) moveRun() {
	isFrozen := len(w.freezes.Holding) > 0
	r, ok := w.anyRun(func(r ActiveRun) bool {
		isRunning := r.Run.State == task.Running
		return isRunning && !w.hangs || !isRunning && !w.isStuck && !isFrozen
	})
	if !ok {
		return
	}

	run := *r.Run
	switch x := w.random.Float64(); {
	case run.State == task.Queued && x < .1 && !w.isAway:
		run.State, run.Reason, run.EndedAt = task.Cancelled, task.ReasonCancelled, task.At(w.now)
		w.end(&run)
	case run.State == task.Queued && !w.isAway: // a commit of the owner gives it to a node
		run.State = task.Dispatched
		w.write(func(revision int64) {
			w.commits++
			w.active[run.ID] = ActiveRun{Run: &run, Node: "n1", Create: revision, Mod: revision}
		})
	case run.State == task.Dispatched:
		run.State, run.StartedAt = task.Running, task.At(w.now)
		w.write(func(revision int64) {
			w.active[run.ID] = ActiveRun{Run: &run, Node: "n1", Create: r.Create, Mod: revision}
		})
	case run.State == task.Running && x < .3: // the attempt notes a checkpoint
		w.write(func(revision int64) {
			w.active[run.ID] = ActiveRun{Run: &run, Node: "n1", Create: r.Create, Mod: revision}
		})
	case run.State == task.Running && x < .6: // it fails, and waits for its next attempt
		run.Attempts = append(slices.Clone(run.Attempts), task.Attempt{StartedAt: run.StartedAt, EndedAt: task.At(w.now), State: task.Failed})
		run.State, run.StartedAt = task.Queued, task.Time{}
		w.write(func(revision int64) { w.active[run.ID] = ActiveRun{Run: &run, Create: revision, Mod: revision} })
	case run.State == task.Running:
		run.State, run.EndedAt = task.Succeeded, task.At(w.now)
		w.end(&run)
	}
}

// end ends a run.
func (w *limitWorld) end(r *task.Run) {
	w.write(func(revision int64) {
		delete(w.active, r.ID)
		w.ended[r.ID] = limitEnd{revision, r}
	})
}

// changeTask pauses or resumes the task, or freezes its namespace or ends that.
func (w *limitWorld) changeTask() {
	now := task.At(w.now)
	switch isPaused := w.entry.Paused; {
	case w.random.IntN(3) == 0 && len(w.freezes.Holding) == 0:
		w.write(func(revision int64) {
			w.freezesMod = revision
			w.freezes, _ = w.freezes.Freeze(task.Freeze{Since: now, By: task.NewActor("ann")})
		})
	case len(w.freezes.Holding) > 0:
		w.write(func(revision int64) {
			w.freezesMod = revision
			w.freezes, _, _ = w.freezes.Unfreeze("", now, task.NewActor("ann"))
		})
	default:
		own := task.Own{}
		if w.entry.Own != nil {
			own.Pauses = slices.Clone(w.entry.Own.Pauses)
		}
		if isPaused {
			own.Pauses[len(own.Pauses)-1].Ended = now
			w.entry.From, w.updated = now, w.now
		} else {
			p := task.Pause{Since: now, By: task.NewActor([]string{"ann", "ann", task.PausedByFailures}[w.random.IntN(3)])}
			if p.By.Is("ann") && w.random.IntN(3) == 0 {
				p.Until = task.At(w.now.Add(time.Duration(w.random.IntN(600)) * time.Second))
			}
			own.Pauses = append(own.Pauses, p)
		}
		w.write(func(revision int64) { w.entry.Paused, w.entry.Own, w.entryMod = !isPaused, &own, revision })
	}
}

// step lets some time pass, and makes a random change.
func (w *limitWorld) step(isQuiet bool) {
	w.now = w.now.Add(time.Duration(w.random.IntN(20_000)) * time.Millisecond)

	if isQuiet && w.isAway {
		w.isAway, w.opened, w.pending = false, w.now, nil
	}
	if !w.isAway && (isQuiet || w.random.Float64() < .6) {
		w.decide()
	}

	switch x := w.random.Float64(); {
	case !isQuiet && x < .03:
		w.changeTask()
	case !isQuiet && x < .04:
		// The shard loses its owner, or gets another one. What the former one has sent arrives too late.
		if w.isAway = !w.isAway; !w.isAway {
			w.opened, w.pending = w.now, nil
		}
	case x < .4:
		w.moveRun()
	case x < .5 && len(w.pending) > 0:
		i := w.random.IntN(len(w.pending))
		c := w.pending[i]
		w.pending = slices.Delete(w.pending, i, i+1)
		w.commit(c)
	case !w.isAway:
		w.visit(isQuiet)
	}
}

// walkLimits makes a number of random steps, lets everything become quiet, and returns the faults.
func walkLimits(seed uint64, mutant limitMutant) []string {
	from := task.At(modelStart)
	w := &limitWorld{mutant: mutant, random: rand.New(rand.NewPCG(seed, 2)), now: modelStart, opened: modelStart, decided: modelStart, faults: map[string]bool{}}
	w.ended, w.active, w.updated = map[string]limitEnd{}, map[string]ActiveRun{}, modelStart
	w.entry = task.Entry{UID: modelTask, Schedule: task.Schedules{"* * * * *"}, Timezone: "UTC", From: from, Anchor: from, Alerts: &task.Alerts{
		Failures: new(0), MaxPause: task.Duration(limitOfPause), MaxDuration: task.Duration(limitOfDuration), MaxLateness: task.Duration(limitOfLateness),
	}}
	w.write(func(revision int64) { w.entryMod = revision })

	const steps, quiet = 400, 300
	for i := range steps + quiet {
		if i == steps {
			w.pending, w.isStuck, w.hangs = nil, seed%3 == 1, seed%3 == 2
		}
		w.step(i >= steps)
	}

	w.visit(true)
	for k, kind := range limitKinds {
		notMet, isClear := w.isNotMet(kind, w.now, w.opened)
		if isOpen := w.alerts[k] != nil && w.alerts[k].IsOpen(); isClear && isOpen != notMet {
			w.faults[fmt.Sprintf("when all is quiet: %s open %t, not met %t", kind, isOpen, notMet)] = true
		}
	}

	return slices.Sorted(maps.Keys(w.faults))
}

// Verifies: G57, G58
func TestEvaluate_WalksOfLimits(t *testing.T) {
	t.Parallel()

	for seed := range uint64(100) {
		if faults := walkLimits(seed, noLimitMutant); len(faults) > 0 {
			t.Errorf("walk %d: %q", seed, faults)
		}
	}
}

// The walks find each fault in how evaluations of limits are used.
func TestEvaluate_WalksOfLimitsFindMutants(t *testing.T) {
	t.Parallel()

	for _, mutant := range []limitMutant{
		entryIgnored, freezesIgnored, guardIgnored, ownerTrusted, attemptsForgotten, freezeEndsForgotten, openingForgotten, pauseEndsForgotten,
	} {
		t.Run(string(mutant), func(t *testing.T) {
			t.Parallel()

			for seed := range uint64(300) {
				if len(walkLimits(seed, mutant)) > 0 {
					return
				}
			}

			t.Error("no walk finds it")
		})
	}
}
