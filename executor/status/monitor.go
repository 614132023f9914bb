package status

import (
	"cmp"
	"context"
	"maps"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

// readEvery is how often attempts that run are listened to.
const readEvery = time.Second

// Monitor are what the attempts that run here say of themselves. They are in memory
// only, but for checkpoints, and what is left when an attempt has ended.
type Monitor struct {
	log *zap.Logger

	mu       sync.Mutex
	attempts map[attemptKey]*Attempt
}

type attemptKey struct {
	namespace, task, run string
	attempt              int
}

// Attempt is one attempt's. nil says nothing.
type Attempt struct {
	monitor *Monitor
	key     attemptKey

	mu     sync.Mutex
	file   reader
	report report
	at     task.Time // of the progress
	told   string    // the checkpoint that on was called with last
	failed bool      // to read, which was logged
	still  bool      // it is paused
	on     func(checkpoint string)
}

// NewMonitor makes a monitor. Run runs it.
func NewMonitor(log *zap.Logger) *Monitor {
	return &Monitor{log: cmp.Or(log, zap.NewNop()), attempts: map[attemptKey]*Attempt{}}
}

// Watch listens to an attempt, until End is called.
func (ts *Monitor) Watch(a *task.Assigned, file File) *Attempt {
	t := &Attempt{monitor: ts, key: attemptKey{a.Namespace, a.Task, a.ID, max(a.Attempt, 1)}, file: reader{File: &file},
		report: reportBefore(&a.Run), told: a.Checkpoint}
	ts.mu.Lock()
	ts.attempts[t.key] = t
	ts.mu.Unlock()

	return t
}

// OnCheckpoint has on called with each checkpoint that is heard before the end. It does not
// block.
func (t *Attempt) OnCheckpoint(on func(checkpoint string)) {
	if t == nil {
		return
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	t.on = on
}

// SetPaused notes whether the attempt stands still.
func (t *Attempt) SetPaused(still bool) {
	if t == nil {
		return
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	t.still = still
}

// Run listens to all attempts until ctx ends.
func (ts *Monitor) Run(ctx context.Context) {
	clock := time.NewTicker(readEvery)
	defer clock.Stop()

	var all []*Attempt
	for {
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		}

		ts.mu.Lock()
		for _, t := range ts.attempts {
			all = append(all, t)
		}
		ts.mu.Unlock()

		for _, t := range all {
			t.readNew(false)
		}

		clear(all)
		all = all[:0]
	}
}

// readNew reads what is new.
func (t *Attempt) readNew(last bool) {
	t.mu.Lock()
	if t.file.File == nil { // it has ended
		t.mu.Unlock()
		return
	}

	progress, err := t.file.readNew(&t.report, last)
	if progress {
		t.at = task.At(time.Now())
	}

	if err != nil && !t.failed {
		t.failed = true
		t.monitor.log.Warn("cannot read the status file of an attempt", zap.String("task", t.key.namespace+"/"+t.key.task), zap.String("run", t.key.run), zap.Error(err))
	}

	checkpoint, news := t.report.checkpoint, t.report.checkpoint != t.told
	t.told = checkpoint
	on := t.on
	t.mu.Unlock()

	if news && on != nil && !last {
		on(checkpoint)
	}
}

// End reads the last of it, before the file is removed, and returns what the attempt has said in all. wrote: there may
// be a file. Nobody listens to the attempt any more. nil: nobody has.
func (t *Attempt) End(wrote bool) *task.AttemptStatus {
	if t == nil {
		return nil
	}

	t.monitor.mu.Lock()
	if t.monitor.attempts[t.key] == t {
		delete(t.monitor.attempts, t.key)
	}
	t.monitor.mu.Unlock()

	if wrote {
		t.readNew(true)
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	t.file.File = nil

	return new(t.currentStatus())
}

// currentStatus is what it has said so far. mu is held.
func (t *Attempt) currentStatus() task.AttemptStatus {
	v := task.AttemptStatus{Namespace: t.key.namespace, Task: t.key.task, Run: t.key.run, Attempt: t.key.attempt, Paused: t.still,
		StatusReport: task.StatusReport{Results: maps.Clone(t.report.results), Checkpoint: t.report.checkpoint, BadLines: t.report.bad}}
	if t.report.percent != nil {
		v.Progress = &task.Progress{Percent: new(*t.report.percent), Text: t.report.text, At: t.at}
	}

	return v
}

// Of is what the attempt of a run says that runs here; false if none does.
func (ts *Monitor) Of(namespace, name, run string) (task.AttemptStatus, bool) {
	for _, v := range ts.selectStatuses(func(k attemptKey) bool { return k.namespace == namespace && k.task == name && k.run == run }) {
		return v, true
	}
	return task.AttemptStatus{}, false
}

// All is what all attempts say that run here.
func (ts *Monitor) All() []task.AttemptStatus {
	return ts.selectStatuses(func(attemptKey) bool { return true })
}

func (ts *Monitor) selectStatuses(wanted func(attemptKey) bool) (list []task.AttemptStatus) {
	var some []*Attempt
	ts.mu.Lock()
	for k, t := range ts.attempts {
		if wanted(k) {
			some = append(some, t)
		}
	}
	ts.mu.Unlock()

	for _, t := range some {
		t.mu.Lock()
		list = append(list, t.currentStatus())
		t.mu.Unlock()
	}

	return list
}
