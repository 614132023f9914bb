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

// readEvery is the interval at which status files are read.
const readEvery = time.Second

// Monitor reads and stores the reports of running attempts. They are in memory
// only; the executor stores checkpoints and the final report. The methods may be called from any goroutine.
type Monitor struct {
	log *zap.Logger

	mu       sync.Mutex
	attempts map[attemptKey]*Attempt
}

type attemptKey struct {
	namespace, task, run string
	attempt              int
}

// Attempt holds the reports of one attempt. A nil Attempt reports nothing.
type Attempt struct {
	monitor *Monitor
	key     attemptKey

	mu             sync.Mutex
	file           reader
	report         report
	at             task.Time               // when the progress was last reported
	lastCheckpoint string                  // the checkpoint that was last passed to onCheckpoint
	failed         bool                    // an error of reading was logged; later ones are not
	paused         bool                    // the attempt is paused
	onCheckpoint   func(checkpoint string) // called for each new checkpoint; may be nil
}

// NewMonitor returns a monitor. Run must be called for it to read files.
func NewMonitor(log *zap.Logger) *Monitor {
	return &Monitor{log: cmp.Or(log, zap.NewNop()), attempts: map[attemptKey]*Attempt{}}
}

// Watch begins to read the status file of an attempt, until End is called. The report begins with the results and the
// checkpoint of the run's previous attempts.
func (ts *Monitor) Watch(a *task.Assigned, file File) *Attempt {
	t := &Attempt{monitor: ts, key: attemptKey{a.Namespace, a.Task, a.ID, max(a.Attempt, 1)}, file: reader{File: &file},
		report: reportBefore(&a.Run), lastCheckpoint: a.Checkpoint}
	ts.mu.Lock()
	ts.attempts[t.key] = t
	ts.mu.Unlock()

	return t
}

// OnCheckpoint sets a function that is called with each new checkpoint before the end. The function must not
// block.
func (t *Attempt) OnCheckpoint(on func(checkpoint string)) {
	if t == nil {
		return
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	t.onCheckpoint = on
}

// Mask sets a function that hides values of secrets in the progress and the results that the attempt reports. It does not
// apply to checkpoints, because the next attempt needs them as they are.
func (t *Attempt) Mask(mask func(string) string) {
	if t == nil {
		return
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	t.report.mask = mask
}

// SetPaused sets whether the attempt is paused, for its status.
func (t *Attempt) SetPaused(still bool) {
	if t == nil {
		return
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	t.paused = still
}

// Run reads the files of all attempts every readEvery until ctx ends.
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

// readNew reads new lines and calls on if they contain a new checkpoint. last means that the attempt has ended; its
// checkpoint is in the final report then.
func (t *Attempt) readNew(last bool) {
	t.mu.Lock()
	if t.file.File == nil { // End was called
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

	checkpoint, news := t.report.checkpoint, t.report.checkpoint != t.lastCheckpoint
	t.lastCheckpoint = checkpoint
	on := t.onCheckpoint
	t.mu.Unlock()

	if news && on != nil && !last {
		on(checkpoint)
	}
}

// End reads the rest of the file, before that is removed, and returns the final report. wrote is false if the attempt
// has left no file. The file is not read any more afterwards. The result is nil if t is nil.
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

// currentStatus returns the current report. The caller holds mu.
func (t *Attempt) currentStatus() task.AttemptStatus {
	v := task.AttemptStatus{Namespace: t.key.namespace, Task: t.key.task, Run: t.key.run, Attempt: t.key.attempt, Paused: t.paused,
		StatusReport: task.StatusReport{Results: maps.Clone(t.report.results), Checkpoint: t.report.checkpoint, BadLines: t.report.bad}}
	if t.report.percent != nil {
		v.Progress = &task.Progress{Percent: new(*t.report.percent), Text: t.report.text, At: t.at}
	}

	return v
}

// Of returns the report of a run's attempt, and false if none is running here.
func (ts *Monitor) Of(namespace, name, run string) (task.AttemptStatus, bool) {
	for _, v := range ts.selectStatuses(func(k attemptKey) bool { return k.namespace == namespace && k.task == name && k.run == run }) {
		return v, true
	}
	return task.AttemptStatus{}, false
}

// All returns the reports of all running attempts, in no order.
func (ts *Monitor) All() []task.AttemptStatus {
	return ts.selectStatuses(func(attemptKey) bool { return true })
}

// selectStatuses returns the reports of the attempts that match.
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
