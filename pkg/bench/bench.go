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
	Site   etcdTargetConfig
	Shards int
	Slots  int    // processes that run at the same time
	Cgroup string // control groups of attempts: cgroup.Auto or cgroup.Off

	Tasks       int
	Duration    time.Duration
	Warmup      time.Duration // before the measurement
	Limit       time.Duration // how long to measure the limits that belong to a rate; 0: not
	Callers     int           // concurrent callers of the API
	Overlap     string
	Keep        int           // ended runs that are kept for each task
	Outstanding int           // the maximum of runs that have not ended
	Rate        int           // ticks per second
	Every       time.Duration // between two herds, or between two kills
	Rounds      int           // measured herds
	ValueBytes  int
	Audit       bool          // also judge the history with package check
	Command     []string      // what a process runs
	Base        int           // the number of tasks to compare many tasks with
	LabelValues int           // how many values one of the labels of the tasks has
	Alerts      bool          // the tasks have an expectation
	Lease       time.Duration // of the nodes in failover
	Ends        int           // how many runs of chains are started by others
	Fan         int           // how many tasks run after one; 0: chains
	Kill        bool          // nodes are killed while chains run
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

// verifyResult reads back what happened, compares it with the metrics of the node and the number of runs that were seen
// to end, and sets the verification of res. Everything must have ended, and the node must be stopped. period is that of
// the tasks whose schedule is "@every" that long.
func (c *cluster) verifyResult(ctx context.Context, said metrics, finished int64, period time.Duration, res *Result) error {
	c.progress.beginStep("read every revision back")

	// Everything up to this revision belongs to the run.
	upTo, err := c.currentRevision(ctx)
	if err != nil {
		return err
	}

	// A history that cannot be read makes the result unverified. It is not an error of the benchmark.
	ends := c.inbox == nodeName
	t, err := c.readBack(ctx, period, ends)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		res.setVerified(err)
		return nil
	}

	// What was counted must agree with etcd.
	for _, n := range []struct {
		what           string
		counted, found int64
	}{
		{"runs dispatched", said.ticks("run"), t.Claimed}, {"ticks skipped", said.ticks("skipped"), t.Skipped}, {"ticks missed", said.ticks("missed"), t.Missed},
		{"runs queued", said.ticks("queued"), 0}, {"runs finished", finished, t.Finished},
	} {
		if n.counted != n.found {
			t.addFault("%s: counted %d, but etcd has %d", n.what, n.counted, n.found)
		}
	}

	if t.Claimed == 0 {
		t.addFault("no run was dispatched")
	}

	res.Skipped, res.Missed = t.Skipped, t.Missed
	res.setVerified(t.faultsAsError())

	// The audit judges the same revisions by all guarantees of package check.
	if !c.Audit {
		return nil
	}

	c.progress.beginStep("audit")
	audit, err := c.auditRange(ctx, c.from, upTo, ends)
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
