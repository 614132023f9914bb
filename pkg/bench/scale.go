package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
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
