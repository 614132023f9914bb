package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// settings are the flags of all benchmarks. Each benchmark uses some of them.
type settings struct {
	Site etcdTargetConfig
	Rig  rigConfig

	Tasks       int
	Duration    time.Duration
	Warmup      time.Duration // before the measurement
	Limit       time.Duration // how long to measure the limits that belong to a rate; 0: not
	Callers     int           // concurrent callers of the API
	Overlap     string
	Keep        int           // ended runs that are kept for each task
	Outstanding int           // the maximum of runs that have not ended
	Rate        int           // ticks per second
	Every       time.Duration // between two herds
	Rounds      int           // measured herds
	ValueBytes  int
	Audit       bool          // also judge the history with package check
	Command     []string      // what a process runs
	Base        int           // the number of tasks to compare many tasks with
	LabelValues int           // how many values one of the labels of the tasks has
	Lease       time.Duration // of the nodes in failover
	CPUProfile  string        // a file; "": none
	MemProfile  string
}

// bench is one benchmark in progress.
type bench struct {
	settings
	*etcdTarget
	log      *zap.Logger
	progress *progress
	report   *Report
}

// measureLimits measures several write patterns of etcd, within d altogether.
func (b *bench) measureLimits(ctx context.Context, d time.Duration, s sizes, names ...string) ([]Result, error) {
	l := &limiter{etcdTarget: b.etcdTarget, sizes: s, took: d / time.Duration(len(names)), now: b.progress.showStatus}
	var list []Result
	for _, name := range names {
		b.progress.beginStep("%s", name)
		res, err := l.measureShape(ctx, name)
		if err != nil {
			return nil, err
		}

		list = append(list, res)
	}

	return list, nil
}

// meanOf combines two measurements of the same thing.
func meanOf(before, after Result) Result {
	r := Result{Name: before.Name}
	r.Count, r.Seconds = before.Count+after.Count, roundTo(before.Seconds+after.Seconds, 3)
	r.RatePerS, r.CPUMicros = roundTo((before.RatePerS+after.RatePerS)/2, 1), roundTo((before.CPUMicros+after.CPUMicros)/2, 2)
	return r
}

// schedulerOrigin returns the time that a scheduler's clock shows before it is started: a month ago. However fast
// that clock advances, it does not pass the real time, in which actions are started.
func schedulerOrigin() time.Time { return time.Now().Add(-30 * 24 * time.Hour).Truncate(time.Second) }

// prepareRig creates the cluster with the tasks of a load, and starts its node.
func (b *bench) prepareRig(ctx context.Context, l load) (*rig, *work, error) {
	r, err := newRig(ctx, b.etcdTarget, b.Rig, b.log)
	if err != nil {
		return nil, nil, err
	}

	if err = b.createTasks(ctx, r, l); err == nil {
		b.progress.beginStep("join, load %d shards", r.cluster.Shards)
		err = r.joinCluster(ctx)
	}

	var w *work
	if err == nil {
		w, err = r.startParts(ctx, l)
	}

	if err != nil {
		return nil, nil, errors.Join(err, r.close(ctx))
	}

	return r, w, nil
}

// createTasks creates the tasks of a load.
func (b *bench) createTasks(ctx context.Context, r *rig, l load) error {
	return b.populateTasks(ctx, r, l.tasks, l.makeTask)
}

// populateTasks creates n tasks, and shows the progress.
func (b *bench) populateTasks(ctx context.Context, r *rig, n int, of func(i int) (task.Task, task.Entry)) error {
	if n > 0 {
		b.progress.beginStep("create %s tasks", formatNumber(float64(n)))
	}

	return createTasks(ctx, r.client, r.keys, r.cluster.Shards, n, of, func(made int64) {
		b.progress.showStatus("create %s tasks: %s", formatNumber(float64(n)), formatNumber(float64(made)))
	})
}

// finishRuns waits until everything that is due has ended, and stops the node.
func (b *bench) finishRuns(ctx context.Context, r *rig, w *work) error {
	b.progress.beginStep("settle")
	return errors.Join(r.awaitSettled(ctx, w), w.stopParts())
}

// counted is what a scheduler and an executor have counted themselves.
type counted struct {
	Ticks    map[string]int64 // by outcome
	Finished int64            // attempts whose end is recorded
}

func (w *work) currentCounts() counted { return counted{w.outcomeCounts(), w.observer.finished.Load()} }

// verifyResult reads back what happened, compares it with what was counted, and sets the verification of res.
// Everything must have ended, and the node must be stopped. period is that of the tasks whose schedule is "@every"
// that long.
func (b *bench) verifyResult(ctx context.Context, r *rig, said counted, period time.Duration, res *Result) error {
	b.progress.beginStep("read every revision back")

	// Everything up to this revision belongs to the run.
	upTo, err := r.currentRevision(ctx)
	if err != nil {
		return err
	}

	// A history that cannot be read makes the result unverified. It is not an error of the benchmark.
	t, err := r.readBack(ctx, period, r.cfg.Executor)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		res.setVerified(err)
		return nil
	}

	// What scheduler and executor have counted must agree with etcd.
	for _, c := range []struct {
		what           string
		counted, found int64
	}{
		{"runs dispatched", said.Ticks["run"], t.Claimed}, {"ticks skipped", said.Ticks["skipped"], t.Skipped}, {"ticks missed", said.Ticks["missed"], t.Missed},
		{"runs queued", said.Ticks["queued"], 0}, {"runs finished", said.Finished, t.Finished},
	} {
		if c.counted != c.found {
			t.addFault("%s: counted %d, but etcd has %d", c.what, c.counted, c.found)
		}
	}

	if t.Claimed == 0 {
		t.addFault("no run was dispatched")
	}

	res.Skipped, res.Missed = t.Skipped, t.Missed
	res.setVerified(t.faultsAsError())

	// The audit judges the same revisions by all guarantees of package check.
	if !b.Audit {
		return nil
	}

	b.progress.beginStep("audit")
	audit, err := r.auditRange(ctx, r.joinedAt, upTo, r.cfg.Executor)
	if err != nil {
		return err
	}

	if s := audit.Summary; s.Runs != t.Claimed || s.Undecided != 0 {
		res.setVerified(fmt.Errorf("the audit found %d runs and %d undecided ticks", s.Runs, s.Undecided))
	}

	if err := audit.Err(); err != nil {
		res.setVerified(errors.Join(t.faultsAsError(), err))
	}

	return nil
}

func (b *bench) addResults(results ...Result) {
	b.report.Results = append(b.report.Results, results...)
}

var noopAction = task.Action{Noop: &task.Noop{}}

// sizes are the sizes of the written values, in bytes.
type sizes struct{ run, ended, mark, spec, entry int }

// plainSizes returns equal sizes, as documents and comparisons with other systems use them.
func plainSizes(bytes int) sizes { return sizes{bytes, bytes, bytes, bytes, bytes} }

// sizesOf returns the sizes of the records of a load, as store writes them.
func sizesOf(ctx context.Context, l load) (n sizes, err error) {
	t, e := l.makeTask(0)

	// Make one record of each kind, as in a run of the load.
	now := task.At(time.Now())
	run := task.Run{
		ID: task.RunID(now.Time, t.UID), UID: t.UID, Namespace: t.Namespace, Task: t.Name, ScheduledTime: now, State: task.Dispatched,
		Trigger: task.TriggerSchedule, Node: nodeName, Owner: nodeName, Attempt: 1, CreatedAt: now, DispatchedAt: now,
	}
	held := record.Held{Create: 1e6, Assigned: task.Assigned{
		Run: run, Instance: t.UID, Generation: 1, Action: e.Action, KillGrace: e.KillGrace, Retry: e.Retry,
	}}
	ended := run
	ended.State, ended.StartedAt, ended.EndedAt, ended.LatenessMS = task.Succeeded, now, now, new(int64(1))

	action, err := json.Marshal(e.Action)
	if err != nil {
		return n, err
	}

	keys, err := record.NewKeys("/sizes")
	if err != nil {
		return n, err
	}

	// Let store encode them into a committer that only collects the writes.
	var ops putCollector
	s := store.New(nil, &ops, keys)
	commit := s.NewCommit(0, store.Fences{}, 1, record.Watermark{Time: now, Seen: 1e6})
	commit.Claim(&held.Assigned, string(action), 1)

	if _, err := s.Commit(ctx, commit); err != nil {
		return n, err
	}
	if err := s.Finish(ctx, held, ended, nil); err != nil {
		return n, err
	}
	if _, err := s.CreateTask(ctx, held.Ref(), t, e); err != nil {
		return n, err
	}

	var of []int
	for _, op := range ops {
		if op.IsPut() {
			of = append(of, len(op.ValueBytes()))
		}
	}

	// The order is that of the calls above. A change of store that breaks it is detected here.
	if len(of) != 5 {
		return n, fmt.Errorf("a claim, its watermark, its end, a spec and an entry are %d records", len(of))
	}

	return sizes{run: of[0], mark: of[1], ended: of[2], spec: of[3], entry: of[4]}, nil
}

// progress shows what happens: on a terminal in one line that is overwritten, otherwise in a line for each step.
type progress struct {
	out      io.Writer
	terminal bool

	mu   sync.Mutex
	last string    // the last step, which is printed once
	at   time.Time // when the line was last overwritten
}

// newProgress returns the progress display for a stream.
func newProgress(out io.Writer) *progress {
	p := &progress{out: out}
	if f, ok := out.(*os.File); ok {
		_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		p.terminal = err == nil
	}

	return p
}

// beginStep shows the step that begins.
func (p *progress) beginStep(format string, args ...any) {
	p.printLine(true, fmt.Sprintf(format, args...))
}

// showStatus shows the state of a step, on a terminal only.
func (p *progress) showStatus(format string, args ...any) {
	p.printLine(false, fmt.Sprintf(format, args...))
}

// printLine prints a step, or on a terminal overwrites the line at most ten times a second.
func (p *progress) printLine(step bool, line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.terminal && step && line != p.last:
		fmt.Fprintln(p.out, line)
		p.last = line
	case p.terminal && (step || time.Since(p.at) > 100*time.Millisecond):
		fmt.Fprintf(p.out, "\r\x1b[K%s", line)
		p.at = time.Now()
	}
}

// Write writes text of others, such as a log, in the place of the line.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}

	return p.out.Write(b)
}

// clearLine removes the line.
func (p *progress) clearLine() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
