package bench

import (
	"context"
	"errors"
	"math"
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

// saturatingLoad returns a load whose tasks tick as often as they may.
func (b *bench) saturatingLoad(action task.Action) load {
	return load{tasks: b.Tasks, period: saturationPeriod, origin: time.Now().Truncate(time.Second), action: action, overlap: b.Overlap, keep: b.Keep}
}

// measureFire measures ticks that are decided and dispatched into an inbox that nobody reads.
func (b *bench) measureFire(ctx context.Context) error {
	l := b.saturatingLoad(noopAction)
	l.overlap, l.held = task.OverlapAllow, true

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
	l := b.saturatingLoad(noopAction)

	s, err := sizesOf(ctx, l)
	if err != nil {
		return err
	}

	measure := func(d time.Duration) ([]Result, error) { return b.measureLimits(ctx, d, s, limitCycle) }

	return b.measureRate(ctx, "lifecycle", l, measure)
}

// measureProcess measures complete runs of real processes.
func (b *bench) measureProcess(ctx context.Context) error {
	measure := func(d time.Duration) ([]Result, error) {
		b.progress.beginStep(limitSpawn)
		res, err := measureSpawns(ctx, b.Command, b.Slots, d)
		return []Result{res}, err
	}

	return b.measureRate(ctx, "process", b.saturatingLoad(task.Action{Process: &task.Process{Command: b.Command}}), measure)
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

	c, err := b.createCluster(ctx, benchNamespace)
	if err != nil {
		return err
	}

	if l.held {
		holder, leave, rerr := c.registerHolder(ctx, task.NodeReady)
		if rerr != nil {
			return rerr
		}

		defer func() { err = errors.Join(err, leave()) }()
		c.inbox = holder.Name
	}

	if err := c.createTasks(ctx, l.tasks, l.makeTask); err != nil {
		return err
	}

	clk := newPacedClock(l.origin)
	o := newPacedObserver(c.keys, clk, l.allTimetables(c.shards))

	n, err := c.startNode(ctx, clk, o)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, n.stop()) }()

	t := &rateTrial{bench: b, node: n, observer: o, clock: clk, load: l}
	res := Result{Name: name}
	if err := t.driveLoad(ctx, &res); err != nil {
		return err
	}

	// The clock stands still, so all runs end.
	b.progress.beginStep("settle")
	err = n.awaitCondition(ctx, settleFor, "every tick is decided and every run has ended", func() (bool, error) {
		return o.firstUndecided() > clk.Now().UnixMilli() && (l.held || o.allFinished()), nil
	})
	if err != nil {
		return err
	}

	said, err := n.awaitTicks(ctx, o.decided())
	if err = errors.Join(err, n.stop()); err != nil {
		return err
	}

	res.LatenessMS = newSpread(o.claimed)

	if b.Limit > 0 {
		if after, err = limits(b.Limit / 2); err != nil {
			return err
		}

		for i := range before {
			before[i] = meanOf(before[i], after[i])
		}

		res.compareWith(&before[0])
	}

	if err := c.verifyResult(ctx, said, o.finished.Load(), l.period, &res); err != nil {
		return err
	}

	b.addResults(res)
	b.addResults(before...)

	return nil
}

// rateTrial is the measurement of a rate in progress.
type rateTrial struct {
	*bench
	node     *node
	observer *tickObserver
	clock    *pacedClock
	load     load
}

// driveLoad warms up and measures. It leaves the clock held.
func (t *rateTrial) driveLoad(ctx context.Context, res *Result) (err error) {
	driving, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()

	// Advance the clock in the background until the measurement ends.
	wg.Go(func() { t.pushClock(driving) })

	// With an executor, a run counts when it has ended, otherwise when it was dispatched.
	count := t.observer.finished.Load
	if t.load.held {
		count = t.observer.dispatched.Load
	}

	// Each task has had a tick when all shards are loaded.
	t.progress.beginStep("%s: load %d shards", res.Name, t.Shards)
	second := t.load.origin.Add(2 * t.load.period).UnixMilli()
	err = t.node.awaitCondition(ctx, loadFor, "every shard is loaded", func() (bool, error) { return t.observer.firstUndecided() >= second, nil })
	if err != nil {
		return err
	}

	t.progress.beginStep("%s: warm up", res.Name)

	if !clock.Sleep(ctx, t.Warmup) {
		return ctx.Err()
	}

	t.progress.beginStep("%s", res.Name)
	profiled, err := t.startProfile()
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, profiled()) }()

	before, err := t.node.metrics(ctx)
	if err != nil {
		return err
	}

	t.observer.sampleTicks(t.clock.Now().UnixMilli(), math.MaxInt64)

	watch := startWatch(count())
	for left := t.Duration; left > 0; left = t.Duration - time.Since(watch.began) {
		if !clock.Sleep(ctx, min(left, 200*time.Millisecond)) {
			return ctx.Err()
		}
		t.progress.showStatus("%s  %.1f of %s  %s/s", res.Name, time.Since(watch.began).Seconds(), t.Duration, formatNumber(watch.ratePerSecond(count())))
	}

	watch.fillResult(count(), res)

	after, err := t.node.metrics(ctx)
	if err != nil {
		return err
	}

	after.fillGroupCommits(before, res)
	t.observer.sampleTicks(math.MaxInt64, math.MaxInt64)

	return nil
}

// pushClock advances the clock as far as undecided ticks and outstanding runs allow. With an executor, ticks become
// due in herds of half as many as may be outstanding, when the previous half has ended. If they became due one by
// one, each would have its own commit, unlike in a scheduler with a backlog.
func (t *rateTrial) pushClock(ctx context.Context) {
	for clock.Sleep(ctx, 500*time.Microsecond) {
		ahead := clockWindow.Milliseconds()
		if !t.load.held {
			most := t.maxOutstanding()
			room := most - (t.observer.dispatched.Load() - t.observer.finished.Load())
			if room < most/2 {
				continue
			}

			ahead = min(ahead, max(room*t.load.period.Milliseconds()/int64(t.load.tasks), 1))
		}

		first := t.observer.firstUndecided()
		t.clock.forgetBefore(first)
		t.clock.advanceTo(min(first+ahead, time.Now().UnixMilli()))
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
	l := load{tasks: b.Tasks, period: b.Every, herd: true, action: noopAction, overlap: b.Overlap, keep: b.Keep}
	return b.measureLateness(ctx, "herd", l, 1, b.Rounds)
}

// measureLatency measures how late ticks are claimed and their actions start, for a few ticks on an otherwise idle
// node.
func (b *bench) measureLatency(ctx context.Context) error {
	l := load{tasks: b.Rate, period: time.Second, action: noopAction, overlap: b.Overlap, keep: b.Keep}
	return b.measureLateness(ctx, "latency", l, l.periodsIn(b.Warmup), l.periodsIn(b.Duration))
}

// measureLateness measures lateness in real time: that of all ticks of some periods, after some periods for warming up.
func (b *bench) measureLateness(ctx context.Context, name string, l load, warmup, measured int) (err error) {
	c, err := b.createCluster(ctx, benchNamespace)
	if err != nil {
		return err
	}

	o := newTickObserver(c.keys)

	n, err := c.startNode(ctx, nil, o)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, n.stop()) }()

	// All tasks are created before the first tick, and have the same number of ticks.
	l.origin = time.Now().Add(time.Second + time.Duration(l.tasks)*100*time.Microsecond).Truncate(time.Millisecond)
	begin := l.origin.Add(time.Duration(warmup+1) * l.period)
	end := begin.Add(time.Duration(measured) * l.period)
	l.end = end.Add(-time.Millisecond)
	o.sampleTicks(begin.UnixMilli(), end.UnixMilli())

	if err := c.createTasks(ctx, l.tasks, l.makeTask); err != nil {
		return err
	}

	// A profile begins half a period, or half a second, before the first tick.
	b.progress.beginStep("%s: warm up", name)

	if !clock.Sleep(ctx, time.Until(begin)-min(l.period/2, 500*time.Millisecond)) {
		return ctx.Err()
	}

	b.progress.beginStep("%s", name)
	profiled, err := b.startProfile()
	if err != nil {
		return err
	}

	ok := clock.Sleep(ctx, time.Until(end))
	if err := profiled(); err != nil || !ok {
		return errors.Join(err, ctx.Err())
	}

	said, err := n.awaitTicks(ctx, int64(l.tasks*(warmup+measured)))
	if err == nil {
		err = n.awaitCondition(ctx, settleFor, "every run has ended", func() (bool, error) { return o.allFinished(), nil })
	}
	if err = errors.Join(err, n.stop()); err != nil {
		return err
	}

	// One measurement yields two results: until the claim, and until the start.
	claim := Result{Name: name + "/claim", Count: int64(len(o.claimed)), Seconds: roundTo(end.Sub(begin).Seconds(), 3), LatenessMS: newSpread(o.claimed)}
	if err := c.verifyResult(ctx, said, o.finished.Load(), l.period, &claim); err != nil {
		return err
	}

	start := claim
	start.Name, start.Count, start.LatenessMS, start.Skipped, start.Missed = name+"/start", int64(len(o.started)), newSpread(o.started), 0, 0
	b.addResults(claim, start)

	return nil
}

// periodsIn returns how many periods a duration has, at least one.
func (l load) periodsIn(d time.Duration) int { return int((max(d, 1) + l.period - 1) / l.period) }

// defaultOverlap is the default of the overlap policy.
var defaultOverlap = task.Defaults().Overlap
