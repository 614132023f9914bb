package ledger

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Book is the whole ledger of a task, for questions. Its times are absolute.
type Book struct {
	Since  time.Time         // the first tick that it tells of; zero: it is empty
	Lines  []task.LedgerLine // the newest first
	Broken int               // chunks that cannot be read
}

// NewBook reads the ledger of the task with this uid from the values of its chunks, in the order of their keys. Chunks of
// other tasks of that name are ignored.
func NewBook(uid string, chunks [][]byte) *Book {
	panic("TODO")
}

// Find returns the lines that tell of the tick at an instant. An exception takes precedence over an hour that names the
// tick, and that over a span and an hour that does not. The result is empty if the ledger has nothing about it.
func (b *Book) Find(tick time.Time) []task.LedgerLine {
	panic("TODO")
}

// Between returns the lines that tell of ticks from from (inclusive) to to (exclusive), the newest first.
func (b *Book) Between(from, to time.Time) []task.LedgerLine {
	panic("TODO")
}
