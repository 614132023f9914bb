package readmodel

import (
	"math"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
)

// packedRow is a Row as an Index keeps it, in 64 bytes. A node may hold a million of them.
//
// It keeps a Row exactly, with these limits. What is beyond a limit is kept as the limit, so a number at its limit means
// "at least":
//
//   - LastSuccess is kept to the second, rounded down, up to the year 2106.
//   - Active and Waiting are at most MaxRuns.
//
// LastSuccess is a time and not a distance from LastEnd: a distance would lose a part of a second with each end.
type packedRow struct {
	name     string
	labels   map[string]string
	schedule *schedule.Schedule

	next    int64
	lastEnd int64

	lastSuccess uint32 // Unix seconds
	duration    int32
	lateness    int32
	failures    uint16
	runs        uint8 // Active in the lower four bits, Waiting in the upper ones
	state       uint8 // Flags in the lower four bits, Last in the upper ones
}

const (
	// halfBits is the size of one of two numbers that share a byte.
	halfBits = 4
	halfMask = 1<<halfBits - 1

	// MaxRuns is the largest number of active runs, and of waiting ones, that an Index keeps of a task.
	MaxRuns = halfMask
)

// packRow returns a row as an Index keeps it.
func packRow(r *Row) packedRow {
	active, waiting := min(r.Active, MaxRuns), min(r.Waiting, MaxRuns)

	return packedRow{
		name: r.Name, labels: r.Labels, schedule: r.Schedule,
		next: r.Next, lastEnd: r.LastEnd,

		lastSuccess: uint32(min(max(r.LastSuccess, 0)/1000, math.MaxUint32)),
		duration:    r.Duration,
		lateness:    r.Lateness,
		failures:    r.Failures,
		runs:        uint8(active) | uint8(waiting)<<halfBits,
		state:       uint8(r.Flags)&halfMask | uint8(r.Last)<<halfBits,
	}
}

// unpackTo sets all fields of r. A scan calls it for each row, so it must be fast.
func (p *packedRow) unpackTo(r *Row) {
	r.Name, r.Labels, r.Schedule = p.name, p.labels, p.schedule
	r.Next, r.LastEnd, r.LastSuccess = p.next, p.lastEnd, int64(p.lastSuccess)*1000
	r.Duration, r.Lateness, r.Failures = p.duration, p.lateness, p.failures
	r.Active, r.Waiting = uint16(p.runs&halfMask), uint16(p.runs>>halfBits)
	r.Flags, r.Last = p.flags(), Outcome(p.state>>halfBits)
}

// flags returns the flags of the row.
func (p *packedRow) flags() Flags { return Flags(p.state & halfMask) }
