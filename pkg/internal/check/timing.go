package check

import (
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// timing is an entry's ticks, and when they fall due.
type timing struct {
	tickSource
	uid        string
	jitter     int64 // ms
	fromOracle bool  // the ticks are the oracle's own
}

// newTiming makes the timing of an entry.
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

// due is when a tick falls due: later by a hash of uid and tick, and before the
// next one.
func (t *timing) due(tick int64) int64 {
	if t == nil || t.jitter == 0 {
		return tick
	}

	width := t.jitter
	if next, ok := t.next(tick); ok {
		width = min(width, next-tick)
	}

	return tick + int64(xxhash.Sum64String(t.uid+"/"+strconv.FormatInt(tick, 10))%uint64(width))
}

// dueUpTo is the instant up to which all ticks fall due at or before at, and none
// after it does. Ticks fall due in their order.
func (t *timing) dueUpTo(at int64) int64 {
	if t == nil || t.jitter == 0 {
		return at
	}

	upTo := max(at-t.jitter, 0)
	listTicks(t, upTo, at, func(tick int64) bool {
		if t.due(tick) > at {
			return false
		}
		upTo = tick
		return true
	})

	return upTo
}

// boundedTicks has the ticks from start to end, both included; 0: without a bound.
type boundedTicks struct {
	tickSource
	start, end int64
}

func (b boundedTicks) next(after int64) (int64, bool) {
	if b.start != 0 {
		after = max(after, b.start-1)
	}
	at, ok := b.tickSource.next(after)
	return at, ok && (b.end == 0 || at <= b.end)
}

// usedUp reports whether an entry has had as many runs as it may.
func usedUp(e task.Entry) bool { return e.MaxRuns > 0 && ownCounters(e).Runs >= e.MaxRuns }

// ownCounters is what an entry knows of itself.
func ownCounters(e task.Entry) task.Own {
	if e.Own == nil {
		return task.Own{}
	}
	return *e.Own
}

// pausedUntil is until when a paused entry has no ticks, in ms; 0: it is not paused,
// or has none at all.
func pausedUntil(e task.Entry) int64 {
	until, _ := e.Silence()
	return unixMS(until)
}

// hasTicks reports whether an entry has ticks.
func hasTicks(e task.Entry) bool { return e.Ticks() && !usedUp(e) }

// sameTicks reports whether two versions of an entry have the same ticks.
func sameTicks(a, b task.Entry) bool {
	return a.Timing().Same(b.Timing()) && a.Anchor.Equal(b.Anchor.Time) && a.Paused == b.Paused &&
		pausedUntil(a) == pausedUntil(b) && hasTicks(a) == hasTicks(b)
}

// decidedUpTo is up to which tick, in ms, those of an entry are decided, given its
// shard's watermark.
func (e *entryState) decidedUpTo(ref record.Ref, w record.Watermark, markMod int64) int64 {
	from := e.From.UnixMilli()
	if markMod > 0 && e.create <= w.Seen {
		return max(from, e.ticks.dueUpTo(watermarkCovers(w, ref.String())))
	}
	return from
}

// completionPeriod is the period of a schedule that counts from the end of a run.
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
