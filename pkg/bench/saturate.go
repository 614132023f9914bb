package bench

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
)

// saturationPeriod is the shortest period that a schedule may have, so that few tasks have many ticks.
const saturationPeriod = 100 * time.Millisecond

// clockWindow is how far the clock may be ahead of the first undecided tick. It is less than a period, so that no
// task ever has two due ticks.
const clockWindow = saturationPeriod * 9 / 10

// measureFire measures ticks that are decided and dispatched into an inbox that nobody reads.
func (b *bench) measureFire(ctx context.Context) error {
	b.Rig.Executor = false
	l := load{tasks: b.Tasks, period: saturationPeriod, origin: schedulerOrigin(), action: noopAction, overlap: task.OverlapAllow, keep: b.Keep}

	s, err := sizesOf(ctx, l)
	if err != nil {
		return err
	}

	measure := func(d time.Duration) ([]Result, error) { return b.measureLimits(ctx, d, s, limitCommit, limitNested) }

	return b.measureRate(ctx, "fire", l, measure)
}

// measureLifecycle measures complete runs whose action does nothing: dispatched, started, ended, recorded and
// trimmed.
func (b *bench) measureLifecycle(ctx context.Context) error {
	b.Rig.Executor = true
	l := load{tasks: b.Tasks, period: saturationPeriod, origin: schedulerOrigin(), action: noopAction, overlap: b.Overlap, keep: b.Keep}

	s, err := sizesOf(ctx, l)
	if err != nil {
		return err
	}

	measure := func(d time.Duration) ([]Result, error) { return b.measureLimits(ctx, d, s, limitCycle) }

	return b.measureRate(ctx, "lifecycle", l, measure)
}

// measureProcess measures complete runs of real processes.
func (b *bench) measureProcess(ctx context.Context) error {
	b.Rig.Executor = true
	action := task.Action{Process: &task.Process{Command: b.Command}}
	l := load{tasks: b.Tasks, period: saturationPeriod, origin: schedulerOrigin(), action: action, overlap: b.Overlap, keep: b.Keep}
	measure := func(d time.Duration) ([]Result, error) {
		b.progress.beginStep(limitSpawn)
		res, err := measureSpawns(ctx, b.Command, b.Rig.Slots, d)
		return []Result{res}, err
	}

	return b.measureRate(ctx, "process", l, measure)
}

// measureRate measures the rate of a load, with a clock that always leaves something due. The result is compared
// with the first of the limits.
func (b *bench) measureRate(ctx context.Context, name string, l load, limits func(time.Duration) ([]Result, error)) (err error) {
	// The limits are measured before and after the benchmark, and averaged, because other load on the machine
	// changes.
	var before, after []Result
	if b.Limit > 0 {
		if before, err = limits(b.Limit / 2); err != nil {
			return err
		}
	}

	r, w, err := b.prepareRig(ctx, l)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, r.close(ctx)) }()

	res := Result{Name: name}

	// driveLoad leaves the clock held, so that all runs can end.
	err = b.driveLoad(ctx, r, w, l, &res)
	if err = errors.Join(err, b.finishRuns(ctx, r, w)); err != nil {
		return err
	}

	res.LatenessMS = newSpread(w.observer.claimSamples())

	if b.Limit > 0 {
		if after, err = limits(b.Limit / 2); err != nil {
			return err
		}

		for i := range before {
			before[i] = meanOf(before[i], after[i])
		}

		res.compareWith(&before[0])
	}

	if err := b.verifyResult(ctx, r, w.currentCounts(), l.period, &res); err != nil {
		return err
	}

	b.addResults(res)
	b.addResults(before...)

	return nil
}

// driveLoad warms up and measures. It leaves the clock held.
func (b *bench) driveLoad(ctx context.Context, r *rig, w *work, l load, res *Result) (err error) {
	driving, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()

	// Advance the clock in the background until the measurement ends.
	wg.Go(func() { b.pushClock(driving, r, w, l) })

	// With an executor, a run counts when it has ended, otherwise when it was dispatched.
	count := func() int64 {
		if r.cfg.Executor {
			return w.observer.finished.Load()
		}
		return w.outcomeCounts()["run"]
	}

	b.progress.beginStep("%s: warm up", res.Name)

	if !clock.Sleep(ctx, b.Warmup) {
		return ctx.Err()
	}

	b.progress.beginStep("%s", res.Name)
	profiled, err := b.startProfile()
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, profiled()) }()

	w.observer.measuring.Store(true)

	before, watch := r.readGroupCommitStats(w), startWatch(count())
	for left := b.Duration; left > 0; left = b.Duration - time.Since(watch.began) {
		if !clock.Sleep(ctx, min(left, 200*time.Millisecond)) {
			return ctx.Err()
		}
		b.progress.showStatus("%s  %.1f of %s  %s/s", res.Name, time.Since(watch.began).Seconds(), b.Duration, formatNumber(watch.ratePerSecond(count())))
	}

	watch.fillResult(count(), res)
	r.readGroupCommitStats(w).subtractFrom(before, res)
	w.observer.measuring.Store(false)

	return nil
}

// pushClock advances the clock as far as undecided ticks and outstanding runs allow. With an executor, ticks become
// due in herds of half as many as may be outstanding, when the previous half has ended. If they became due one by
// one, each would have its own commit, unlike in a scheduler with a backlog.
func (b *bench) pushClock(ctx context.Context, r *rig, w *work, l load) {
	var skipped int64
	var looked time.Time
	for clock.Sleep(ctx, 500*time.Microsecond) {
		ahead := clockWindow.Milliseconds()
		if r.cfg.Executor {
			if time.Since(looked) > 20*time.Millisecond {
				looked, skipped = time.Now(), w.outcomeCounts()["skipped"]
			}

			most := b.maxOutstanding()
			room := most - (w.observer.decided.Load() - skipped - w.observer.finished.Load())
			if room < most/2 {
				continue
			}

			ahead = min(ahead, max(room*l.period.Milliseconds()/int64(l.tasks), 1))
		}

		first := w.observer.firstUndecided()
		w.clock.forgetBefore(first)
		w.clock.advanceTo(first + ahead)
	}
}

// maxOutstanding returns how many runs may be dispatched and not ended. With overlap skip it is at most half of the
// tasks. Runs end in about the order in which they start, so that few ticks are skipped.
func (b *bench) maxOutstanding() int64 {
	if b.Overlap == task.OverlapSkip {
		return int64(min(b.Outstanding, max(b.Tasks/2, 1)))
	}
	return int64(b.Outstanding)
}

// measureSpawns measures how fast this process can start programs and wait for them, with a number of them at once.
func measureSpawns(ctx context.Context, argv []string, atOnce int, d time.Duration) (Result, error) {
	res := Result{Name: limitSpawn}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()

	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return res, err
	}

	defer null.Close()

	var count atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, atOnce)
	watch := startWatch(0)

	for i := range atOnce {
		wg.Go(func() {
			for first := true; first || ctx.Err() == nil; first = false { // at least one
				p, err := os.StartProcess(argv[0], argv, &os.ProcAttr{Files: []*os.File{null, null, null}})
				if err == nil {
					_, err = p.Wait()
				}

				if err != nil {
					errs[i] = err
					return
				}

				count.Add(1)
			}
		})
	}

	wg.Wait()
	watch.fillResult(count.Load(), &res)

	return res, errors.Join(errs...)
}

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
