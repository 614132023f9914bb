package check

import (
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// timing holds an entry's ticks and when they are due. A tick is due at its time, or with jitter up to that much
// later.
type timing struct {
	tickSource
	uid        string // part of the hash that spreads due times
	jitter     int64  // in ms; 0: none
	fromOracle bool   // the oracle computes the ticks, not package schedule
}

// newTiming returns the timing of an entry, or an error if its schedule cannot be parsed.
func newTiming(e task.Entry) (*timing, error) {
	t, own, err := newTickSource(e)
	if err != nil {
		return nil, err
	}

	if !e.Start.IsZero() || !e.End.IsZero() {
		t = boundedTicks{t, unixMS(e.Start), unixMS(e.End)}
	}

	return &timing{tickSource: t, uid: e.UID, jitter: int64(e.Jitter) / 1e6, fromOracle: own}, nil
}

// dueAt returns when a tick is due, in ms: with jitter, later by a hash of uid and tick, but before the next tick.
// The formula is part of the protocol: owners compute the same hash, so that a new owner knows when a tick is due.
func (t *timing) dueAt(tick int64) int64 {
	if t == nil || t.jitter == 0 {
		return tick
	}

	width := t.jitter
	if next, ok := t.nextTick(tick); ok {
		width = min(width, next-tick)
	}

	return tick + int64(xxhash.Sum64String(t.uid+"/"+strconv.FormatInt(tick, 10))%uint64(width))
}

// dueUpTo returns an instant such that all ticks up to it are due at or before at, and no tick after it is. Such an
// instant exists because jitter never delays a tick past the next one, so that ticks are due in their order.
func (t *timing) dueUpTo(at int64) int64 {
	if t == nil || t.jitter == 0 {
		return at
	}

	upTo := max(at-t.jitter, 0)
	listTicks(t, upTo, at, func(tick int64) bool {
		if t.dueAt(tick) > at {
			return false
		}
		upTo = tick
		return true
	})

	return upTo
}

// boundedTicks has the ticks from start to end, both inclusive, in ms; 0 means no bound.
type boundedTicks struct {
	tickSource
	start, end int64
}

func (b boundedTicks) nextTick(after int64) (int64, bool) {
	if b.start != 0 {
		after = max(after, b.start-1)
	}
	at, ok := b.tickSource.nextTick(after)
	return at, ok && (b.end == 0 || at <= b.end)
}

// usedUp reports whether an entry has had as many runs as max_runs allows.
func usedUp(e task.Entry) bool { return e.MaxRuns > 0 && ownCounters(e).Runs >= e.MaxRuns }

// ownCounters returns the counts that the owner keeps in an entry; zero values if it has none yet.
func ownCounters(e task.Entry) task.Own {
	if e.Own == nil {
		return task.Own{}
	}
	return *e.Own
}

// pausedUntil returns the end of a pause in ms, until when a paused entry has no ticks; 0 if it is not paused, or
// its pause has no end.
func pausedUntil(e task.Entry) int64 {
	until, _ := e.Silence()
	return unixMS(until)
}

// hasTicks reports whether an entry has ticks: it is not paused without an end, and has runs left.
func hasTicks(e task.Entry) bool { return e.Ticks() && !usedUp(e) }

// sameTicks reports whether two versions of an entry have the same ticks, so that they belong to one epoch.
func sameTicks(a, b task.Entry) bool {
	return a.Timing().Same(b.Timing()) && a.Anchor.Equal(b.Anchor.Time) && a.Paused == b.Paused &&
		pausedUntil(a) == pausedUntil(b) && hasTicks(a) == hasTicks(b)
}

// decidedUpTo returns the time in ms up to which an entry's ticks are decided. The entry's from always counts. The
// watermark counts only if it covers the entry: the owner had seen the entry's creation when it wrote the
// watermark. markMod is the watermark's mod revision, 0 if there is none.
func (e *entryState) decidedUpTo(ref record.Ref, w record.Watermark, markMod int64) int64 {
	from := e.From.UnixMilli()
	if markMod > 0 && e.create <= w.Seen {
		return max(from, e.ticks.dueUpTo(watermarkCovers(w, ref.String())))
	}
	return from
}

// completionPeriod returns the period of a schedule that counts from the end of a run, such as "@every 5m after
// completion", and false for any other schedule.
func completionPeriod(e task.Entry) (time.Duration, bool) {
	if len(e.Schedule) != 1 {
		return 0, false
	}

	words := strings.Fields(e.Schedule[0])
	if len(words) != 4 || words[0] != "@every" || words[2] != "after" || words[3] != "completion" {
		return 0, false
	}

	d, err := time.ParseDuration(words[1])

	return d, err == nil && d >= time.Millisecond
}
