package taskstate

import (
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Watch is what a worker has found out of an attempt whose node is gone, or that
// is to end: its task is gone, or a newer tick replaces it.
type Watch struct {
	Held  record.Held // of a record that cannot be read, what its key says
	Since time.Time   // when the node was read as absent, with this record; zero: not yet
	Lost  bool        // it was so all along: the attempt is lost
	// Unreadable is why its record cannot be read. Nobody knows of which instance
	// it is, so that it is never proved dead.
	Unreadable error
	// Ask: it is to be asked to end; Asked: it has been.
	Ask   bool
	Asked bool
}

// LostAfter is how long the attempt is waited for while its node is away: what its record
// says, which the node goes by, too. If the record cannot be read, nobody here knows what
// the node goes by. Then it is the longest that a record can say: with any shorter time
// the attempt's process might still run on a node that is cut off when others take over.
func (v *Watch) LostAfter() time.Duration {
	if v.Unreadable != nil {
		return task.MaxLostAfter.Std()
	}
	return v.Held.EffectiveLostAfter().Std()
}
