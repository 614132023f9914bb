package auditlog

import (
	"context"
	"sync"

	"github.com/carillonhq/carillon/pkg/wake"
)

const (
	// queueRecords and queueBytes bound what a sink keeps in memory while its target is slow or does not answer. queueRecords
	// also bounds the entries, because some have no records.
	queueRecords = 10_000
	queueBytes   = 16 << 20
)

// entry is some records that a sink writes together.
type entry struct {
	lines [][]byte
	// mark is the position of the sink once the records are written; nil leaves it as it is.
	mark *position
}

func (e *entry) byteCount() (n int) {
	for _, line := range e.lines {
		n += len(line)
	}
	return n
}

// queue holds the entries that a sink has to write, the oldest first. One goroutine removes them (first, removeFirst), and
// another one waits for room (push, awaitEmpty). Any number may call offer.
type queue struct {
	maxRecords, maxBytes int

	mu      sync.Mutex
	entries []entry
	records int
	bytes   int

	added   wake.Signal
	removed wake.Signal
}

func newQueue(maxRecords, maxBytes int) *queue {
	return &queue{maxRecords: maxRecords, maxBytes: maxBytes, added: wake.NewSignal(), removed: wake.NewSignal()}
}

// tryPush adds an entry, unless there is no room for it. An empty queue has room for any entry: those of a watch that
// catches up may be larger than the queue.
func (q *queue) tryPush(e entry) bool {
	q.mu.Lock()
	defer q.mu.Unlock()

	records, bytes := q.records+len(e.lines), q.bytes+e.byteCount()
	isFull := len(q.entries) >= q.maxRecords || records > q.maxRecords || bytes > q.maxBytes
	if len(q.entries) > 0 && isFull {
		return false
	}

	q.entries, q.records, q.bytes = append(q.entries, e), records, bytes
	q.added.Send()

	return true
}

// push adds an entry as soon as there is room for it. It returns the error of ctx if that ends first.
func (q *queue) push(ctx context.Context, e entry) error {
	for !q.tryPush(e) {
		if err := await(ctx, q.removed); err != nil {
			return err
		}
	}
	return nil
}

// awaitFirst returns the oldest entry, and waits for one. removeFirst removes it.
func (q *queue) awaitFirst(ctx context.Context) (entry, error) {
	for {
		q.mu.Lock()
		if len(q.entries) > 0 {
			defer q.mu.Unlock()
			return q.entries[0], nil
		}
		q.mu.Unlock()

		if err := await(ctx, q.added); err != nil {
			return entry{}, err
		}
	}
}

func (q *queue) removeFirst() {
	q.mu.Lock()
	defer q.mu.Unlock()

	e := q.entries[0]
	q.entries[0] = entry{} // so that its memory is free
	q.entries, q.records, q.bytes = q.entries[1:], q.records-len(e.lines), q.bytes-e.byteCount()
	q.removed.Send()
}

// awaitEmpty waits until all entries were removed.
func (q *queue) awaitEmpty(ctx context.Context) error {
	for q.length() > 0 {
		if err := await(ctx, q.removed); err != nil {
			return err
		}
	}
	return nil
}

func (q *queue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries)
}

// recordCount returns how many records wait.
func (q *queue) recordCount() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.records
}

func await(ctx context.Context, s wake.Signal) error {
	select {
	case <-s:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
