package ledger

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Record is a record that the trimmer deletes from a history.
type Record struct {
	Run    task.Run // if it is Broken, only ID is set
	Late   bool     // a late result, which only marks the run to which it belongs
	Broken bool     // it cannot be read
}

// Fold adds records of the task with this uid to its ledger, in the order in which they were written. newest is the newest
// chunk; nil if there is none that may be changed. next returns the first tick of the present schedule after a time; false
// if there is none, or if it cannot be computed, as with ticks after completion.
//
// It returns the chunks that must be written. If newest is not nil, the first of them replaces it. The others are new.
// Each record is counted once in them. Fold changes neither its arguments nor what they refer to.
func Fold(uid string, newest *Chunk, records []Record, next func(after time.Time) (time.Time, bool)) []Chunk {
	panic("TODO")
}

// ID returns the last part of a new chunk's key. It sorts after the id of the chunk before it, previous, which is "" if
// there is none.
func (c *Chunk) ID(previous string) string {
	panic("TODO")
}
