package evaluator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// batchPause is how long a batch of tasks takes at least.
const batchPause = store.EvaluateAtOnce * time.Second / tasksPerSecond

// maxRounds is how often an evaluation may ask for further records. It ends much earlier, because each round reads more than the
// one before.
const maxRounds = 64

// evaluateTasks reads tasks in batches, and changes their alerts.
func (e *Evaluator) evaluateTasks(ctx context.Context, jobs []job) {
	for batch := range slices.Chunk(jobs, store.EvaluateAtOnce) {
		// A shard may have been lost or opened again since the visit. Then nothing of it can be written.
		if e.cfg.MayWrite() != nil {
			return
		}

		began := time.Now()
		if err := e.evaluateBatch(ctx, batch); err != nil {
			e.cfg.Logger.Debug("could not evaluate alerts", zap.Error(err))
			return
		}

		if !clock.Sleep(ctx, batchPause-time.Since(began)) {
			return
		}
	}
}

// evaluation is the evaluation of one task.
type evaluation struct {
	job      job
	task     *taskAlerts
	reading  *store.TaskReading
	freezes  int64             // mod revision of the record of freezes
	rules    *store.AlertRules // nil: the task has alerts of its own, or does not exist
	evidence alert.Evidence
	keys     []string // of the records of the history

	verdicts [kinds]alert.Verdict
	changes  [kinds]*alert.Change
	failed   [kinds]error // why the change was not written
}

// evaluateBatch evaluates some tasks, at most store.EvaluateAtOnce.
func (e *Evaluator) evaluateBatch(ctx context.Context, jobs []job) error {
	refs := make([]record.Ref, len(jobs))
	for i, j := range jobs {
		namespace, name, _ := strings.Cut(j.name, "/")
		refs[i] = record.Ref{Namespace: namespace, Name: name, Shard: j.shard.ID}
	}

	reading, err := e.cfg.Store.ReadToEvaluate(ctx, refs, jobs[0].shard.Fences.Gap != nil)
	if err != nil {
		return err
	}

	list := make([]*evaluation, len(jobs))
	for i := range jobs {
		list[i] = newEvaluation(jobs[i], &reading, &reading.Tasks[i])
		list[i].setRules(e.rules)
	}

	if err := e.judge(ctx, list); err != nil {
		return err
	}

	e.write(ctx, list)

	now := e.cfg.Now()
	for _, v := range list {
		v.apply(now)
	}

	return nil
}

// newEvaluation returns the evaluation of a task that was read.
func newEvaluation(j job, all *store.AlertReading, r *store.TaskReading) *evaluation {
	v := &evaluation{job: j, task: j.shard.taskNamed(j.name), reading: r, freezes: all.Freezes.Mod}

	// What was read replaces what was known.
	v.task.records = [kinds]*task.Alert{}
	for i := range r.Alerts {
		if at := kindIndex(r.Alerts[i].Kind); at >= 0 {
			v.task.records[at] = &r.Alerts[i]
		}
	}

	v.evidence = alert.Evidence{
		Namespace: r.Ref.Namespace, Task: r.Ref.Name, Revision: all.Revision, Entry: r.Entry, Unreadable: r.Unreadable,
		Freezes: &all.Freezes.Freezes, Opened: j.shard.Opened, Gap: j.shard.Fences.Gap,
	}

	uid := ""
	if r.Entry != nil {
		uid = r.Entry.UID
	}

	// The create revision gives the order in which runs ended; the key begins with the time of the tick.
	slices.SortFunc(r.History, func(a, b store.ShardEvent) int {
		return cmp.Or(cmp.Compare(b.Create, a.Create), cmp.Compare(b.Key, a.Key))
	})
	for _, ev := range r.History {
		if uid != "" && task.RunBelongs(ev.Run, uid) {
			v.evidence.Records = append(v.evidence.Records, alert.Record{ID: ev.Run, Create: ev.Create, Mod: ev.Mod})
			v.keys = append(v.keys, ev.Key)
		}
	}

	for _, ev := range r.Dead {
		if uid != "" && task.RunBelongs(ev.Run, uid) {
			v.evidence.Dead = append(v.evidence.Dead, alert.Dead{Run: ev.Run, Create: ev.Create, Mod: ev.Mod})
		}
	}

	return v
}

// setRules sets the rules by which the task is judged, if it has no alerts of its own.
func (v *evaluation) setRules(rules *alert.Rules) {
	entry := v.reading.Entry
	if entry == nil || entry.Alerts != nil {
		return
	}

	v.rules = &store.AlertRules{}
	if rules != nil {
		v.rules.Revision = rules.Revision
	}
	if rule := rules.RuleOfEntry(v.reading.Ref.Namespace, entry); rule != nil {
		v.evidence.Rule, v.rules.Name, v.rules.Mod = rule, rule.Name, rule.Revision
	}
}

// judge evaluates tasks, and reads as much of them as that takes.
func (e *Evaluator) judge(ctx context.Context, list []*evaluation) error {
	now := e.cfg.Now()

	for range maxRounds {
		var wanted []wantedRecord
		isDone := true

		for _, v := range list {
			needs := v.evaluate(now)
			isDone = isDone && !needs.Any()

			if err := e.readActive(ctx, v, needs); err != nil {
				return err
			}
			if err := e.readFacts(ctx, v, needs); err != nil {
				return err
			}

			slices.Sort(needs.Records)
			for _, i := range slices.Compact(needs.Records) {
				wanted = append(wanted, wantedRecord{v, i})
			}
		}

		if isDone {
			break
		}

		if err := e.readRecords(ctx, list[0].evidence.Revision, wanted); err != nil {
			return err
		}
	}

	for _, v := range list {
		v.decide(now)
	}

	return nil
}

// evaluate evaluates the expectations of the task with what has been read, and returns what else is needed.
func (v *evaluation) evaluate(now time.Time) (needs alert.Needs) {
	for i, kind := range alert.Kinds {
		verdict, more := alert.Evaluate(&v.evidence, kind, v.task.records[i], now)
		if more.Any() {
			verdict = alert.Verdict{}
		}

		v.verdicts[i] = verdict
		needs.Add(more)
	}

	return needs
}

// wantedRecord is a record in the history of a task whose value is needed.
type wantedRecord struct {
	of    *evaluation
	index int
}

// readRecords reads records at a revision.
func (e *Evaluator) readRecords(ctx context.Context, rev int64, wanted []wantedRecord) error {
	keys := make([]string, len(wanted))
	for i, r := range wanted {
		keys[i] = r.of.keys[r.index]
	}

	events, err := e.cfg.Store.RecordsAt(ctx, keys, rev)
	if err != nil {
		return err
	}

	byKey := make(map[string]*store.ShardEvent, len(events))
	for i := range events {
		byKey[events[i].Key] = &events[i]
	}

	for i, r := range wanted {
		found := &r.of.evidence.Records[r.index]
		found.IsRead = true

		// A record that cannot be read says nothing.
		if ev := byKey[keys[i]]; ev != nil && !ev.Deleted {
			if run, err := record.DecodeEnded(ev.ShardKey, ev.Value); err == nil {
				found.Run = &run
			}
		}
	}

	// Long histories must not take more of etcd than many short ones.
	if pages := len(keys) / 100; pages > 0 && !clock.Sleep(ctx, time.Duration(pages)*batchPause) {
		return ctx.Err()
	}

	return nil
}

// readActive reads the waiting and active runs of a task, if they are needed. Only commits of the owner make runs active, so the row has
// all of them if it contains the commits up to the revision of the evidence. Those that have ended since are not in it any more: then
// the history or the queue is newer than that revision, and a write fails that depends on it.
func (e *Evaluator) readActive(ctx context.Context, v *evaluation, needs alert.Needs) error {
	if !needs.Active {
		return nil
	}

	index := v.job.shard.Index
	hasCommitted := index.HasCommitted(v.reading.Watermark)

	var inboxes []store.InboxRun
	isKnown, areAll := false, true
	if v.job.slot != readmodel.NoSlot {
		isKnown = index.ChangeWatched(v.job.slot, v.job.name, func(w *readmodel.WatchedRow) {
			runs := w.Runs()
			if runs == nil {
				return
			}

			present, away, isComplete := runs.Attempts()
			areAll = isComplete
			for _, a := range slices.Concat(away, present) {
				if !task.IsPart(a.Run) {
					inboxes = append(inboxes, store.InboxRun{Run: a.Run, Node: a.Node})
				}
			}
		})
	}

	found, isWhole, err := e.cfg.Store.ActiveRunsAt(ctx, v.reading.Ref, v.evidence.Revision, inboxes)
	if err != nil {
		return err
	}

	isCurrent := isKnown && hasCommitted
	facts := &alert.ActiveFacts{IsComplete: isCurrent && areAll && isWhole, IsCurrent: isCurrent}
	for i := range found {
		if r := &found[i]; v.reading.Entry == nil || r.Run.UID == v.reading.Entry.UID {
			facts.Runs = append(facts.Runs, alert.ActiveRun{Run: &r.Run, Node: r.Node, Create: r.Create, Mod: r.Mod})
		}
	}
	v.evidence.Active = facts

	return nil
}

// readFacts reads what is needed of a task besides its history.
func (e *Evaluator) readFacts(ctx context.Context, v *evaluation, needs alert.Needs) error {
	if !needs.Spec && !needs.Ledger && !needs.Deleted {
		return nil
	}

	facts := store.AlertFacts{WantSpec: needs.Spec, WantLedger: needs.Ledger, WantTombstone: needs.Deleted}
	if err := e.cfg.Store.AlertFactsAt(ctx, v.reading.Ref, v.evidence.Revision, &facts); err != nil {
		return err
	}

	if needs.Spec {
		v.evidence.Spec = &alert.SpecFacts{UpdatedAt: facts.UpdatedAt, UpdatedBy: facts.UpdatedBy}
	}
	if needs.Ledger {
		v.evidence.Ledger = alert.NewLedgerFacts(v.evidence.Entry.UID, facts.Ledger)
	}
	if needs.Deleted {
		v.evidence.Deleted = &alert.DeletedFacts{By: facts.DeletedBy}
	}

	return nil
}

// decide decides what to write.
func (v *evaluation) decide(now time.Time) {
	v.evidence.Idle = v.isIdle()
	uid, base := v.task.uid, v.task.base // of what was counted before

	for i, kind := range alert.Kinds {
		v.changes[i] = alert.Decide(&v.evidence, kind, v.task.records[i], v.verdicts[i], now)
		if !v.staysCounted(i, uid, base) {
			v.task.counted &^= readmodel.AlertFlag(kind)
		}

		c := v.changes[i]
		if c == nil || !c.Opens {
			continue
		}

		if s := v.job.shard; s.hasRoom(c.Alert.Namespace, c.Alert.Notify) {
			s.addOpen(c.Alert.Namespace, c.Alert.Notify)
		} else {
			v.changes[i] = nil
			v.task.counted |= readmodel.AlertFlag(kind)
			v.task.receivers, v.task.uid = c.Alert.Notify, c.Alert.UID
			if kind == task.AlertFailures {
				v.task.base = c.Alert.Base
			}
		}
	}
}

// staysCounted reports whether an expectation that was counted stays so: if an alert with a record would neither close nor be new. uid
// and base are those of what was counted.
func (v *evaluation) staysCounted(i int, uid string, base int64) bool {
	if record := v.task.records[i]; record != nil && record.IsOpen() {
		return false
	}
	if entry := v.evidence.Entry; entry != nil && entry.UID != uid {
		return false
	}

	switch verdict := &v.verdicts[i]; verdict.State {
	case alert.Unknown, alert.Undecided:
		return true
	case alert.Met:
		// A failed run may have been started again. Then its end decides.
		return alert.Kinds[i] == task.AlertFailures && verdict.Base <= base && !v.evidence.Idle
	}

	return false
}

// isIdle reports whether no run of the task was active or waiting at the revision of the evidence. Runs that wait are in the
// queue. Only a commit of the owner makes a run active, so the row tells about these if it contains all commits up to that revision.
func (v *evaluation) isIdle() bool {
	index := v.job.shard.Index
	if v.reading.HasQueued || v.job.slot == readmodel.NoSlot || !index.HasCommitted(v.reading.Watermark) {
		return false
	}

	isIdle := false
	index.ChangeWatched(v.job.slot, v.job.name, func(w *readmodel.WatchedRow) { isIdle = w.Row.Active == 0 && w.Row.Waiting == 0 })

	return isIdle
}

// write writes the changes of alerts.
func (e *Evaluator) write(ctx context.Context, list []*evaluation) {
	var wg sync.WaitGroup
	places := make(chan struct{}, writesAtOnce)

	for _, v := range list {
		for i, c := range v.changes {
			if c == nil {
				continue
			}

			places <- struct{}{}
			wg.Go(func() {
				defer func() { <-places }()
				e.writeChange(ctx, v, i)
			})
		}
	}

	wg.Wait()
}

// writeChange writes one change. The goroutines of a batch change different elements.
func (e *Evaluator) writeChange(ctx context.Context, v *evaluation, i int) {
	c, s := v.changes[i], v.job.shard
	w := store.AlertWrite{Shard: s.ID, Alert: c.Alert, Revision: v.evidence.Revision, Freezes: v.freezes, EntryMod: v.reading.EntryMod, Rules: v.rules}
	if c.Dead != nil {
		w.Dead = &store.AlertDead{Run: c.Dead.Run, Mod: c.Dead.Mod}
	}

	if g := c.Guard; g != nil {
		w.Active = &store.AlertActive{Run: g.Run.Run.ID, Node: g.Run.Node, Create: g.Run.Create}
		if !g.CreateOnly {
			w.Active.Mod = g.Run.Mod
		}
	}

	mod, err := e.cfg.Store.PutAlert(ctx, s.Fences, &w)
	if err != nil {
		// Something has changed since the reading, or etcd refuses writes. A later visit finds the difference again.
		v.failed[i] = err
		if !errors.Is(err, task.ErrConflict) {
			e.cfg.Logger.Debug("could not write an alert", zap.String("task", v.job.name), zap.Error(err))
		}

		return
	}

	c.Alert.Mod = mod
	if c.Alert.ID == 0 {
		c.Alert.ID = mod
	}
	v.task.records[i] = &c.Alert
}

// apply notes the result of an evaluation in the row of the task, and when to read it again.
func (v *evaluation) apply(now time.Time) {
	t, s := v.task, v.job.shard
	o := v.outcome()

	t.readAt, t.alerts, t.ends, t.isJudged = now, v.job.alerts, v.job.ends, o.isJudged()
	rests := true // the row says something else than the records

	isWatched := s.Index.ChangeWatched(v.job.slot, v.job.name, func(w *readmodel.WatchedRow) {
		w.NotMet = t.notMet()

		// A change of the task since the visit has cleared JudgeAt. It must be judged again.
		hasChanged := w.JudgeAt == 0
		switch {
		case o.isUnknown:
			w.Unknown, w.JudgeAt = true, alwaysDue
		case o.isJudged():
			w.Waiting, w.Unknown, w.JudgeAt = 0, false, seconds(o.next)
		}
		if hasChanged {
			w.JudgeAt = 0
		}

		rests = s.rowDiffers(w, t, now)
	})

	// A write that was not answered may have been applied, or may be later. So the alerts of the shard are read again.
	if o.isRefused {
		s.isLoaded = false
	}

	// The row of a task that was found by its alert gets its flags by the next visit, if it has one.
	if !isWatched && t.notMet() != 0 {
		s.adopts = true
	}

	t.readAgain = time.Time{}
	switch {
	case o.hasConflict:
	case o.isUnknown:
		t.readAgain = now.Add(unknownPause)
	case o.isRefused, o.waits:
		t.readAgain = now.Add(readPause)
	case rests:
		t.readAgain = now.Add(refreshEvery)
		if !o.next.IsZero() {
			t.readAgain = earlier(t.readAgain, o.next)
		}
	}

	if len(s.tasks) > maxResting && t.records == [kinds]*task.Alert{} && t.counted == 0 {
		delete(s.tasks, t.name)
	}
}

// outcome is what has become of the evaluation of a task.
type outcome struct {
	hasConflict bool      // a record has changed since the reading
	isRefused   bool      // etcd has not written a change, for another reason
	isUnknown   bool      // the records did not tell
	waits       bool      // an alert may close when a run has ended
	next        time.Time // when a verdict may change without a new record; zero: never
}

// isJudged reports whether all verdicts are known and written.
func (o *outcome) isJudged() bool { return !o.hasConflict && !o.isRefused && !o.isUnknown }

// outcome returns what has become of the evaluation.
func (v *evaluation) outcome() (o outcome) {
	for i, verdict := range v.verdicts {
		err, record := v.failed[i], v.task.records[i]
		isConflict := errors.Is(err, task.ErrConflict)

		o.hasConflict = o.hasConflict || isConflict
		o.isRefused = o.isRefused || err != nil && !isConflict
		o.isUnknown = o.isUnknown || verdict.State == alert.Unknown
		o.waits = o.waits || verdict.State == alert.Met && (record != nil && record.IsOpen() || v.task.counted.Has(readmodel.AlertFlag(alert.Kinds[i])))

		if at := verdict.Next; !at.IsZero() && (o.next.IsZero() || at.Before(o.next)) {
			o.next = at
		}
	}

	return o
}

// earlier returns the earlier of two times.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// rowDiffers reports whether the row of a task still differs from its alerts.
func (s *shardAlerts) rowDiffers(w *readmodel.WatchedRow, t *taskAlerts, now time.Time) bool {
	e := eye{now: now, opened: s.Opened, first: map[deadlineKey]uint32{}}
	return e.look(w, t.ends.lastSuccess) == differs
}
