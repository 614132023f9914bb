package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// idleFor is how long the CPU usage of an idle scheduler is measured.
const idleFor = 10 * time.Second

// checkScaleRate rejects a rate at which one of the few tasks would have two ticks in a second.
func checkScaleRate(s *settings) error {
	if few := min(s.Base, s.Tasks); s.Rate > few {
		return task.Invalid(task.CodeBadValue, "--rate", "%d is more than the %d tasks of --base, each of which ticks at most once a second", s.Rate, few)
	}
	return nil
}

// measureScale measures a scheduler with many tasks and one with few: its memory, how long it loads, its CPU usage
// while nothing is due, and the cost of a fire. The scheduler runs in a separate process. The load and an
// embedded etcd are in this process.
func (b *bench) measureScale(ctx context.Context) error {
	b.Rig.Executor = false
	b.Base = min(b.Base, b.Tasks)

	few, err := b.measureOneScale(ctx, "scale/base", b.Base, childRequest{})
	if err != nil {
		return err
	}

	many, err := b.measureOneScale(ctx, "scale", b.Tasks, childRequest{CPUProfile: b.CPUProfile, MemProfile: b.MemProfile})
	b.MemProfile = "" // the child has written it
	if err != nil {
		return err
	}

	if few.CPUMicros > 0 {
		many.CostRatio = roundTo(many.CPUMicros/few.CPUMicros, 3)
	}

	b.addResults(many, few)

	return nil
}

// measureOneScale measures one scheduler with n tasks, in its own cluster. o holds further options for it.
func (b *bench) measureOneScale(ctx context.Context, name string, n int, o childRequest) (res Result, err error) {
	res = Result{Name: name, Tasks: int64(n)}

	// A prefix of its own keeps this cluster apart from the one with the other number of tasks.
	part := *b.etcdTarget
	if part.keys, err = record.NewKeys(fmt.Sprintf("%s%d-%s", b.root, n, task.NewUID())); err != nil {
		return res, err
	}

	r, err := newRig(ctx, &part, b.Rig, b.log)
	if err != nil {
		return res, err
	}

	defer func() { err = errors.Join(err, r.close(ctx)) }()

	p, err := newPopulation(n, b.Rate, b.Keep, schedulerOrigin())
	if err != nil {
		return res, err
	}

	p.apps = b.LabelValues

	o.Site, o.Root, o.Rig, o.Origin = b.Site, part.keys.Root(), b.Rig, p.origin
	o.Site.Endpoints = part.cfg.Endpoints

	// The same scheduler without tasks is the baseline for memory.
	empty, err := b.runChild(ctx, name+", no tasks", childRequest{Site: o.Site, Root: o.Root, Rig: o.Rig, Origin: o.Origin})
	if err != nil {
		return res, err
	}
	if err := b.populateTasks(ctx, r, n, p.makeTask); err != nil {
		return res, err
	}

	// Reading back begins here, after the tasks were created.
	if r.joinedAt, err = r.currentRevision(ctx); err != nil {
		return res, err
	}

	o.Idle, o.FireAt, o.Warmup, o.Duration = min(idleFor, b.Duration), p.fireAt, b.Warmup, b.Duration
	full, err := b.runChild(ctx, name, o)
	if err != nil {
		return res, err
	}

	full.Fires.fillResult(&res)

	// Memory per task is the difference to the scheduler without tasks.
	per := func(with, without int64) *float64 { return new(roundTo(float64(with-without)/float64(n), 1)) }
	res.CollectMS, res.CollectCPU = full.CollectMS, full.CollectMicros
	res.LoadMS, res.Reopened, res.IdleCPU = full.LoadMS, full.Reopened, new(roundTo(full.IdleCPU, 5))
	res.MemoryPer, res.MemoryAsIs, res.HeapPer = per(full.Resident, empty.Resident), per(full.AsIs, empty.AsIs), per(full.Heap, empty.Heap)

	return res, b.verifyScaled(ctx, r, full.Said, &res)
}

// verifyScaled verifies the number of tasks, and then what happened.
func (b *bench) verifyScaled(ctx context.Context, r *rig, said counted, res *Result) error {
	found, err := r.countTasks(ctx)
	if err != nil {
		return err
	}

	if found != [2]int64{res.Tasks, res.Tasks} {
		res.setVerified(fmt.Errorf("%d tasks were created, etcd has %d specs and %d entries", res.Tasks, found[0], found[1]))
		return nil
	}

	return b.verifyResult(ctx, r, said, time.Second, res)
}

// runChild lets a child execute a request, and returns its measurement.
func (b *bench) runChild(ctx context.Context, name string, o childRequest) (found schedulerMeasurement, err error) {
	o.Started = time.Now()
	c, err := startChild(schedulerChild, o, b.progress)
	if err != nil {
		return found, err
	}

	defer func() { err = errors.Join(err, c.stopChild()) }()

	for {
		var w childReport
		if err := c.readReport(ctx, &w); errors.Is(err, io.EOF) {
			return found, fmt.Errorf("%s: the scheduler ended too early", name)
		} else if err != nil {
			return found, err
		}

		switch {
		case w.Found != nil:
			return *w.Found, nil
		case w.Loaded:
			w.Step = fmt.Sprintf("loaded in %s", time.Since(o.Started).Round(time.Millisecond))
		}

		b.progress.beginStep("%s: %s", name, w.Step)
	}
}

// child is this program, started again with a hidden subcommand of bench, because the process that is measured must
// not be the one that measures. It reads its request as the first JSON value from standard input, which stays open
// as long as the child may live. It writes its reports as JSON to standard output.
type child struct {
	cmd     *exec.Cmd
	stdin   io.Closer     // the child's standard input; closing it ends the child
	reports *json.Decoder // the child's reports
}

// childTimeout is how long a child may take to end after its standard input was closed.
const childTimeout = time.Minute

// startChild starts a child. The caller must call stopChild, which ends it.
func startChild(name string, request any, errs io.Writer) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}

	text, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}

	c := &child{cmd: exec.Command(exe, name)}
	c.cmd.Stderr = errs
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C on the terminal must reach only this process

	in, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}

	out, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}

	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), in.Close())
	}

	c.stdin, c.reports = in, json.NewDecoder(out)

	if _, err := in.Write(append(text, '\n')); err != nil {
		return nil, errors.Join(fmt.Errorf("send the request to %s: %w", name, err), c.stopChild())
	}

	return c, nil
}

// readReport reads the child's next report. When ctx ends, it closes the input of the child, which ends it. io.EOF means that no more
// reports follow.
func (c *child) readReport(ctx context.Context, v any) error {
	defer context.AfterFunc(ctx, func() { _ = c.stdin.Close() })()

	err := c.reports.Decode(v)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}

	return err
}

// stopChild ends the child and waits for it. The error is the child's.
func (c *child) stopChild() error {
	_ = c.stdin.Close()
	kill := time.AfterFunc(childTimeout, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()

	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", c.cmd.Args[1], err)
	}

	return nil
}

// errLetGo is why a child's context ends when its parent closes its standard input.
var errLetGo = errors.New("let go")

// readRequest reads a child's request. It returns a context that ends when the parent closes the child's standard
// input, or dies.
func readRequest(ctx context.Context, in io.Reader, request any) (context.Context, error) {
	if err := json.NewDecoder(in).Decode(request); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}

	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, in) // blocks until the input is closed
		cancel(errLetGo)
	}()

	return ctx, nil
}
