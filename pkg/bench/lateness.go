package bench

import (
	"context"
	"errors"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
)

// measureHerd measures how late ticks are claimed when many of them are due at the same instant, several times. The
// first round is for warming up.
func (b *bench) measureHerd(ctx context.Context) error {
	l := load{tasks: b.Tasks, period: b.Every, herd: true, origin: schedulerOrigin(), action: noopAction, overlap: b.Overlap, keep: b.Keep}
	return b.measureLateness(ctx, "herd", l, l.period, time.Duration(b.Rounds)*l.period)
}

// measureLatency measures how late ticks are claimed and their actions start, for a few ticks on an otherwise idle
// node.
func (b *bench) measureLatency(ctx context.Context) error {
	l := load{tasks: b.Rate, period: time.Second, origin: schedulerOrigin(), action: noopAction, overlap: b.Overlap, keep: b.Keep}
	return b.measureLateness(ctx, "latency", l, b.Warmup, b.Duration)
}

// measureLateness measures lateness with a clock that runs in real time.
func (b *bench) measureLateness(ctx context.Context, name string, l load, warmup, duration time.Duration) (err error) {
	r, w, err := b.prepareRig(ctx, l)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, r.close(ctx)) }()

	// The clock starts half a period, or half a second, before the first tick, so that no herd is being processed
	// when measuring begins and ends.
	lead := min(l.period/2, 500*time.Millisecond)
	warmup = max(warmup, lead)
	w.clock.runSteadily(l.origin.Add(l.period - lead))
	w.engine.WakeWorkers() // the workers sleep until a time of the held clock; wake them
	b.progress.beginStep("%s: warm up", name)
	ok := clock.Sleep(ctx, warmup)
	b.progress.beginStep("%s", name)

	profiled, err := b.startProfile()
	if err != nil {
		return errors.Join(err, w.stopParts())
	}

	// Sample the lateness of ticks and starts for the duration, and longer if there is no sample yet.
	w.observer.measuring.Store(true)
	began, first := time.Now(), w.observer.decided.Load()
	for left := duration; ok && left > 0; left = duration - time.Since(began) {
		ok = clock.Sleep(ctx, min(left, 200*time.Millisecond))
		b.progress.showStatus("%s  %.1f of %s", name, time.Since(began).Seconds(), duration)
	}

	for ok && !w.observer.isSampled(first, r.cfg.Executor) && time.Since(began) < settleFor { // at least one of each
		ok = clock.Sleep(ctx, min(duration, 200*time.Millisecond))
	}

	count, took := w.observer.decided.Load()-first, time.Since(began)
	w.observer.measuring.Store(false)

	// Hold the clock, so that nothing more becomes due while the runs end.
	w.clock.stopRunning()

	if err := profiled(); err != nil || !ok {
		return errors.Join(err, ctx.Err(), w.stopParts())
	}
	if err := b.finishRuns(ctx, r, w); err != nil {
		return err
	}

	// One measurement yields two results: until the claim, and with an executor until the start.
	claim := Result{Name: name, Count: count, Seconds: roundTo(took.Seconds(), 3), LatenessMS: newSpread(w.observer.claimSamples())}
	if err := b.verifyResult(ctx, r, w.currentCounts(), l.period, &claim); err != nil {
		return err
	}

	start := claim
	claim.Name, start.Name = name+"/claim", name+"/start"
	b.addResults(claim)

	if start.LatenessMS = newSpread(w.observer.startSamples()); start.LatenessMS != nil {
		start.Count, start.Skipped, start.Missed = int64(len(w.observer.startSamples())), 0, 0
		b.addResults(start)
	}

	return nil
}

// defaultOverlap is the default of the overlap policy.
var defaultOverlap = task.Defaults().Overlap
