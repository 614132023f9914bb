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
func (m *Monitor) Watch(a *task.Assigned, file File) *Attempt {
	t := &Attempt{monitor: m, key: attemptKey{a.Namespace, a.Task, a.ID, max(a.Attempt, 1)}, file: reader{File: &file},
		report: reportBefore(&a.Run), lastCheckpoint: a.Checkpoint}
	m.mu.Lock()
	m.attempts[t.key] = t
	m.mu.Unlock()

	return t
}

// OnCheckpoint sets a function that is called with each new checkpoint before the end. The function must not
// block.
func (a *Attempt) OnCheckpoint(on func(checkpoint string)) {
	if a == nil {
		return
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	a.onCheckpoint = on
}

// Mask sets a function that hides values of secrets in the progress and the results that the attempt reports. It does not
// apply to checkpoints, because the next attempt needs them as they are.
func (a *Attempt) Mask(mask func(string) string) {
	if a == nil {
		return
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	a.report.mask = mask
}

// SetPaused sets whether the attempt is paused, for its status.
func (a *Attempt) SetPaused(still bool) {
	if a == nil {
		return
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	a.paused = still
}

// Run reads the files of all attempts every readEvery until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	clock := time.NewTicker(readEvery)
	defer clock.Stop()

	var all []*Attempt
	for {
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		}

		m.mu.Lock()
		for _, t := range m.attempts {
			all = append(all, t)
		}
		m.mu.Unlock()

		for _, t := range all {
			t.readNew(false)
		}

		clear(all)
		all = all[:0]
	}
}

// readNew reads new lines and calls on if they contain a new checkpoint. last means that the attempt has ended; its
// checkpoint is in the final report then.
func (a *Attempt) readNew(last bool) {
	a.mu.Lock()
	if a.file.File == nil { // End was called
		a.mu.Unlock()
		return
	}

	progress, err := a.file.readNew(&a.report, last)
	if progress {
		a.at = task.At(time.Now())
	}

	if err != nil && !a.failed {
		a.failed = true
		a.monitor.log.Warn("cannot read the status file of an attempt", zap.String("task", a.key.namespace+"/"+a.key.task), zap.String("run", a.key.run), zap.Error(err))
	}

	checkpoint, news := a.report.checkpoint, a.report.checkpoint != a.lastCheckpoint
	a.lastCheckpoint = checkpoint
	on := a.onCheckpoint
	a.mu.Unlock()

	if news && on != nil && !last {
		on(checkpoint)
	}
}

// End reads the rest of the file, before that is removed, and returns the final report. wrote is false if the attempt
// has left no file. The file is not read any more afterwards. The result is nil if a is nil.
func (a *Attempt) End(wrote bool) *task.AttemptStatus {
	if a == nil {
		return nil
	}

	a.monitor.mu.Lock()
	if a.monitor.attempts[a.key] == a {
		delete(a.monitor.attempts, a.key)
	}
	a.monitor.mu.Unlock()

	if wrote {
		a.readNew(true)
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	a.file.File = nil

	return new(a.currentStatus())
}

// currentStatus returns the current report. The caller holds mu.
func (a *Attempt) currentStatus() task.AttemptStatus {
	v := task.AttemptStatus{Namespace: a.key.namespace, Task: a.key.task, Run: a.key.run, Attempt: a.key.attempt, Paused: a.paused,
		StatusReport: task.StatusReport{Results: maps.Clone(a.report.results), Checkpoint: a.report.checkpoint, BadLines: a.report.bad}}
	if a.report.percent != nil {
		v.Progress = &task.Progress{Percent: new(*a.report.percent), Text: a.report.text, At: a.at}
	}

	return v
}

// Of returns the report of a run's attempt, and false if none is running here.
func (m *Monitor) Of(namespace, name, run string) (task.AttemptStatus, bool) {
	for _, v := range m.selectStatuses(func(k attemptKey) bool { return k.namespace == namespace && k.task == name && k.run == run }) {
		return v, true
	}
	return task.AttemptStatus{}, false
}

// All returns the reports of all running attempts, in no order.
func (m *Monitor) All() []task.AttemptStatus {
	return m.selectStatuses(func(attemptKey) bool { return true })
}

// selectStatuses returns the reports of the attempts that match.
func (m *Monitor) selectStatuses(wanted func(attemptKey) bool) (list []task.AttemptStatus) {
	var some []*Attempt
	m.mu.Lock()
	for k, t := range m.attempts {
		if wanted(k) {
			some = append(some, t)
		}
	}
	m.mu.Unlock()

	for _, t := range some {
		t.mu.Lock()
		list = append(list, t.currentStatus())
		t.mu.Unlock()
	}

	return list
}
