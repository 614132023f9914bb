package bench

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon/garbage"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// schedulerChild is the hidden subcommand of the child.
const schedulerChild = "scheduler"

// childRequest tells the child what to run and measure.
type childRequest struct {
	Site etcdTargetConfig // must have endpoints
	Root string           // of the cluster's keys
	Rig  rigConfig

	Started  time.Time     // when the process was started
	Origin   time.Time     // what its clock shows until something is due
	Idle     time.Duration // how long to do nothing; 0: only load
	FireAt   time.Time     // what its clock shows when tasks fire
	Warmup   time.Duration
	Duration time.Duration

	CPUProfile, MemProfile string
}

// childReport is a report of that child: the step that begins, that it has loaded, and at the end what it found.
type childReport struct {
	Step   string                `json:",omitempty"`
	Loaded bool                  `json:",omitempty"`
	Found  *schedulerMeasurement `json:",omitempty"`
}

// schedulerMeasurement is what a scheduler measured about itself.
type schedulerMeasurement struct {
	LoadMS         float64 // from the start of the process until every shard could fire
	AsIs           int64   // resident bytes after the idle time
	Resident, Heap int64   // the same after a garbage collection that returns free memory
	IdleCPU        float64 // seconds of CPU time per second
	CollectMS      float64 // how long it read how the runs of all tasks had ended
	CollectMicros  float64 // CPU time for each task
	Reopened       int64   // how often a shard had to be loaded again
	Fires          fires
	Said           counted // what the components have counted
}

// fires are the runs that were dispatched during the measurement.
type fires struct {
	Count              int64
	Seconds, CPUMicros float64
}

func (f fires) fillResult(r *Result) {
	r.Count, r.Seconds, r.CPUMicros = f.Count, f.Seconds, f.CPUMicros
	if f.Seconds > 0 {
		r.RatePerS = roundTo(float64(f.Count)/f.Seconds, 1)
	}
}

// schedulerCommand returns the hidden command of the child.
func schedulerCommand() *cobra.Command {
	return &cobra.Command{
		Use: schedulerChild, Short: "A scheduler for the benchmark scale, which starts it", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			defer garbage.MakeRoom()() // as in a node

			var o childRequest

			ctx, err := readRequest(cmd.Context(), cmd.InOrStdin(), &o)
			if err != nil {
				return err
			}

			err = o.runRequest(ctx, cmd.OutOrStdout(), newLog(cmd.ErrOrStderr()))

			if errors.Is(context.Cause(ctx), errLetGo) {
				return nil // the parent does not read any more
			}

			return err
		},
	}
}

// runRequest starts a scheduler, measures it, and reports what it found.
func (c childRequest) runRequest(ctx context.Context, out io.Writer, log *zap.Logger) (err error) {
	say := json.NewEncoder(out)
	s := &etcdTarget{}
	if s.keys, err = record.NewKeys(c.Root[:len(c.Root)-1]); err != nil {
		return err
	}

	s.cfg = c.Site.clientConfig(log)
	if s.client, err = s.dialClient(ctx); err != nil {
		return err
	}

	defer func() { err = errors.Join(err, s.client.Close()) }()

	r, err := newRig(ctx, s, c.Rig, log)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, r.close(ctx)) }()

	if err := r.joinCluster(ctx); err != nil {
		return err
	}

	w, err := r.startParts(ctx, load{origin: c.Origin, period: time.Second})
	if err != nil {
		return err
	}

	found := schedulerMeasurement{LoadMS: roundTo(time.Since(c.Started).Seconds()*1000, 1)}
	err = say.Encode(childReport{Loaded: true})
	if err == nil {
		err = c.measureRequest(ctx, r, w, say, &found)
	}

	if err = errors.Join(err, w.stopParts()); err != nil {
		return err
	}

	found.Said, found.Reopened = w.currentCounts(), w.observer.reopened.Load()

	return say.Encode(childReport{Found: &found})
}

// measureRequest measures the idle scheduler, its memory, and then its fires.
func (c childRequest) measureRequest(ctx context.Context, r *rig, w *work, say *json.Encoder, found *schedulerMeasurement) error {
	// Let the clock run, but at a time when no task is due.
	w.clock.runSteadily(c.Origin)
	w.engine.WakeWorkers() // the workers sleep until a time of the held clock; wake them

	if !clock.Sleep(ctx, time.Second) {
		return context.Cause(ctx)
	}

	if c.Idle > 0 {
		if err := c.awaitCollected(ctx, w, say, found); err != nil {
			return err
		}
		if err := say.Encode(childReport{Step: "nothing is due"}); err != nil {
			return err
		}

		cpu, at := cpuTime(), time.Now()

		if !clock.Sleep(ctx, c.Idle) {
			return context.Cause(ctx)
		}

		found.IdleCPU = (cpuTime() - cpu).Seconds() / time.Since(at).Seconds()
	}

	// Measure memory before and after a forced garbage collection.
	found.AsIs = residentMemory()
	found.Resident, found.Heap = measureMemory()

	// A scheduler without tasks is only the baseline for memory.
	if c.Idle == 0 {
		return nil
	}
	if err := heapProfile(c.MemProfile); err != nil {
		return err
	}
	if err := say.Encode(childReport{Step: "fire"}); err != nil {
		return err
	}

	return c.fireSteadily(ctx, r, w, found)
}

// awaitCollected waits until the scheduler has read how the runs of all tasks had ended, which it does in the background.
func (c childRequest) awaitCollected(ctx context.Context, w *work, say *json.Encoder, found *schedulerMeasurement) error {
	if err := say.Encode(childReport{Step: "read how runs had ended"}); err != nil {
		return err
	}

	cpu, at := cpuTime(), time.Now()
	known, tasks := w.engine.Collected()

	for ; known < tasks; known, tasks = w.engine.Collected() {
		if !clock.Sleep(ctx, 100*time.Millisecond) {
			return context.Cause(ctx)
		}
	}

	found.CollectMS = roundTo(time.Since(at).Seconds()*1000, 1)
	found.CollectMicros = roundTo((cpuTime()-cpu).Seconds()*1e6/float64(max(tasks, 1)), 2)

	return nil
}

// fireSteadily moves the clock to where some tasks have a tick each second, and measures.
func (c childRequest) fireSteadily(ctx context.Context, r *rig, w *work, found *schedulerMeasurement) error {
	w.clock.runSteadily(c.FireAt)
	w.engine.WakeWorkers()

	if !clock.Sleep(ctx, c.Warmup) {
		return context.Cause(ctx)
	}

	profiled, err := cpuProfile(c.CPUProfile)
	if err != nil {
		return err
	}

	watch := startWatch(w.outcomeCounts()["run"])
	ok := clock.Sleep(ctx, c.Duration)
	for ok && w.outcomeCounts()["run"] == watch.first && time.Since(watch.began) < settleFor { // at least one fire
		ok = clock.Sleep(ctx, min(c.Duration, 200*time.Millisecond))
	}

	var res Result
	watch.fillResult(w.outcomeCounts()["run"], &res)
	found.Fires = fires{res.Count, res.Seconds, res.CPUMicros}

	if err := profiled(); err != nil || !ok {
		return errors.Join(err, context.Cause(ctx))
	}

	w.clock.stopRunning()

	return r.awaitSettled(ctx, w)
}

// measureMemory returns the memory of the process without garbage: resident, and of that the heap.
func measureMemory() (bytes, heap int64) {
	debug.FreeOSMemory()
	debug.FreeOSMemory() // the first one may find finalizers to run
	var m runtime.MemStats
	runtime.ReadMemStats(&m)

	return residentMemory(), int64(m.HeapAlloc)
}
