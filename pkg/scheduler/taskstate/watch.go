package taskstate

import (
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Watch is what an owner has read about an attempt whose node is gone, or which must be cancelled because
// its task is gone, its run ends, or a newer tick replaces it.
type Watch struct {
	// Held is the attempt's record. If the record cannot be read, Held contains what its key shows.
	Held record.Held
	// Since is when the node was first read as absent, with this record. It is zero if that has not
	// happened.
	Since time.Time
	// Lost means that the node was still absent, and the record unchanged, at a second reading after
	// LostAfter.
	Lost bool
	// Unreadable is why the record cannot be read. Its instance is then unknown, so it can never be proved
	// dead.
	Unreadable error
	// Ask means that the next plan must request the attempt's end. Asked means that somebody has requested
	// it.
	Ask   bool
	Asked bool
}

// LostAfter returns how long the node must be absent before the attempt is lost: the lost_after in the
// attempt's record, which the node uses as well. If the record cannot be read, it is unknown which value
// the node uses, so LostAfter returns the longest that is possible. With a shorter time, the attempt's
// process could still run on a node that is cut off when another attempt takes over (G17).
func (v *Watch) LostAfter() time.Duration {
	if v.Unreadable != nil {
		return task.MaxLostAfter.Std()
	}
	return v.Held.EffectiveLostAfter().Std()
}
