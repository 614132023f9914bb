package background

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// folding moves the surplus of one history to the ledger, in as many transactions as it takes.
type folding struct {
	store      HistoryTrimmer
	job        *Trim
	now        time.Time
	oldestTick time.Time    // ledgers need not remember earlier ticks
	lost       *lostRecords // what was deleted while etcd was full
	history    []store.Past // all records of the task, in the order of their keys
	listed     []store.Past // the same, with those of a deleted task of that name
	revision   int64        // at which they were listed
	chunks     int64        // how many there are
	newest     string       // the id of the newest chunk, as of the last fold

	list *store.HistoryToTrim // what was read with the list of the history; nil after the first fold
	walk tickWalk             // the last one of nextTick
}

// tickWalk is the result of nextTick after from, and after every later time before to.
type tickWalk struct {
	from, to time.Time // to is zero if there is no tick
	isKnown  bool
}

// foldAll folds records in the order in which they were written.
func (f *folding) foldAll(ctx context.Context, gone []store.Past) error {
	for len(gone) > 0 {
		done, err := f.foldSome(ctx, gone[:min(len(gone), store.MaxFold)])
		if err != nil {
			return err
		}

		gone = gone[done:]
	}

	return nil
}

// foldSome folds the first of the records, as many as fit into a transaction, and returns how many it has handled.
func (f *folding) foldSome(ctx context.Context, gone []store.Past) (done int, err error) {
	records, newest, err := f.read(ctx, gone)
	if err != nil {
		return 0, err
	}
	// All of them are gone, or were changed since they were listed.
	if len(records) == 0 {
		return len(gone), nil
	}

	fold, n, err := f.newFold(ctx, records, newest)
	if err != nil {
		return 0, err
	}

	// Late results whose runs have gone before add nothing to the ledger.
	if len(fold.Put) > 0 {
		err = f.store.FoldHistory(ctx, f.job.Fences, fold)
	}

	switch {
	case len(fold.Put) == 0, store.NoSpace(err):
		if len(fold.Put) > 0 {
			f.lost.note(f.now)
		}
		err = f.store.TrimHistory(ctx, f.job.Fences, f.job.Ref, fold.Gone)
	case err == nil:
		f.newest = fold.Put[len(fold.Put)-1].ID
		f.chunks += countNew(fold) - int64(len(fold.Drop))
	}

	if err != nil {
		return 0, err
	}

	if n == len(records) {
		return len(gone), nil
	}

	return 1 + slices.Index(gone, records[n-1].Past), nil
}

// read returns the records to fold, and the newest chunk. The first fold uses what was read with the list, if that
// suffices.
func (f *folding) read(ctx context.Context, gone []store.Past) (records []store.PastRecord, newest *store.LedgerChunk, err error) {
	list := f.list
	f.list = nil

	if list == nil {
		return f.store.ReadToFold(ctx, f.job.Ref, gone, f.newest)
	}

	if list.Newest != nil {
		f.newest = list.Newest.ID
	}

	for _, p := range gone {
		value, ok := list.Value(p)
		if !ok {
			return f.store.ReadToFold(ctx, f.job.Ref, gone, f.newest)
		}
		records = append(records, store.PastRecord{Past: p, Value: value})
	}

	return records, list.Newest, nil
}

// newFold returns the fold of the first of the records, and of how many.
func (f *folding) newFold(ctx context.Context, records []store.PastRecord, newest *store.LedgerChunk) (fold store.HistoryFold, n int, err error) {
	for n = len(records); ; n = (n + 1) / 2 {
		var chunks []ledger.Chunk
		var gone time.Time
		fold, chunks, gone = f.foldOf(records[:n], newest)

		drop, last, err := f.chunksToDrop(ctx, fold)
		if err != nil {
			return fold, 0, err
		}

		fold.Drop = append(fold.Drop, drop...)
		if last.After(gone) {
			gone = last
		}

		if err := putChunks(&fold, chunks, gone); err != nil {
			return fold, 0, fmt.Errorf("fold history of %s: %w", f.job.Ref, err)
		}

		// Many records that need an entry of their own may need many chunks.
		if fold.Ops() <= store.MaxFoldOps || n == 1 {
			return fold, n, nil
		}
	}
}

// putChunks sets the values of the chunks that a fold writes. Ticks up to gone may be neither in the ledger nor in the history.
func putChunks(fold *store.HistoryFold, chunks []ledger.Chunk, gone time.Time) error {
	if len(chunks) == 0 {
		return nil
	}

	ledger.SetGone(chunks, gone)
	for i := range chunks {
		value, err := chunks[i].MarshalJSON()
		if err != nil {
			return err
		}
		fold.Put[i].Value = value
	}

	return nil
}

// foldOf returns the fold of records behind the newest chunk, with the chunks that it writes. Their values are set later.
// Ticks up to gone may be neither in the ledger nor in the history.
func (f *folding) foldOf(records []store.PastRecord, newest *store.LedgerChunk) (fold store.HistoryFold, chunks []ledger.Chunk, gone time.Time) {
	fold = store.HistoryFold{
		Ref: f.job.Ref, EntryCreate: f.job.Created, Gone: make([]store.Past, len(records)), Listed: f.listed, Revision: f.revision, Newest: newest,
	}
	for i, p := range records {
		fold.Gone[i] = p.Past
	}

	// A chunk that was written by a newer version, or by hand, is not changed. A chunk of a deleted task is of no use.
	var last *ledger.Chunk
	previous := ""
	gone = f.lost.until()
	if newest != nil {
		previous = newest.ID
		chunk, whole, err := ledger.Decode(newest.Value)
		switch {
		case err != nil:
			gone = f.now // its contents are unknown
		case chunk.UID != f.job.UID:
			fold.Drop = append(fold.Drop, newest.ID)
		default:
			if chunk.Uncounted {
				gone = f.now
			} else if chunk.Gone.After(gone) {
				gone = chunk.Gone.Time
			}

			if whole {
				last = &chunk
			}
		}
	}

	chunks = ledger.FoldEach(f.job.UID, last, parsedRecords(records, &fold), f.nextTick)
	for i := range chunks {
		if i > 0 || last == nil {
			previous = chunks[i].ID(previous)
		}

		fold.Put = append(fold.Put, store.LedgerChunk{ID: previous})
	}

	return fold, chunks, gone
}

// parsedRecords decodes records of a history for the ledger, one after the other. It adds those to fold.Compare that must not
// have changed when the fold is applied.
func parsedRecords(records []store.PastRecord, fold *store.HistoryFold) iter.Seq[*ledger.Record] {
	return func(yield func(*ledger.Record) bool) {
		var r ledger.Record // of a large type: one for all

		for _, p := range records {
			parseRecord(&r, p)

			// The owner may extend a record of skipped ticks at any time, also that of a single tick.
			if r.Broken || r.Run.State == task.Skipped || r.Run.Count > 1 {
				fold.Compare = append(fold.Compare, p.Past)
			}

			if !yield(&r) {
				return
			}
		}
	}
}

// parseRecord decodes a record of a history into r.
func parseRecord(r *ledger.Record, p store.PastRecord) {
	err := record.DecodeEndedInto(&r.Run, record.ShardKey{Run: p.Run()}, p.Value)
	if err != nil {
		r.Run = task.Run{ID: p.Run()}
	}

	r.Late, r.Broken = p.Late, err != nil
}

// nextTick returns the first tick of the task's schedule after a time that is not in the history. So a span continues over
// ticks whose records stay, or will be folded later: readers find them in the history. It returns false if there is none,
// and for a schedule whose ticks depend on the end of runs.
func (f *folding) nextTick(after time.Time) (time.Time, bool) {
	if _, completion := f.job.Schedule.AfterCompletion(); completion {
		return time.Time{}, false
	}

	// A fold asks after each success. In a long history, every walk would pass the same thousands of records.
	w := &f.walk
	if w.isKnown && !after.Before(w.from) && (w.to.IsZero() || after.Before(w.to)) {
		return w.to, !w.to.IsZero()
	}

	tick, ok := f.job.Schedule.Next(after)
	for ok && f.isInHistory(tick) {
		tick, ok = f.job.Schedule.Next(tick)
	}

	*w = tickWalk{from: after, isKnown: true}
	if ok {
		w.to = tick
	}

	return w.to, ok
}

// isInHistory reports whether the history had a record of a tick when it was listed.
func (f *folding) isInHistory(tick time.Time) bool {
	_, found := slices.BinarySearchFunc(f.history, task.RunID(tick, f.job.UID), func(p store.Past, id string) int {
		return strings.Compare(p.ID, id)
	})

	return found
}

// countNew returns how many chunks the fold begins.
func countNew(fold store.HistoryFold) int64 {
	n := int64(len(fold.Put))
	if n > 0 && fold.Newest != nil && fold.Put[0].ID == fold.Newest.ID {
		n--
	}

	return n
}

// maxExpired is how many chunks a fold deletes at most in addition to as many as it begins.
const maxExpired = 4

// chunksToDrop returns the ids of the chunks that a fold must delete because they are too old or too many, and the last tick
// that they contain. It looks for them only if the fold begins a chunk.
func (f *folding) chunksToDrop(ctx context.Context, fold store.HistoryFold) (ids []string, last time.Time, err error) {
	begun := countNew(fold)
	if begun == 0 || f.chunks == 0 {
		return nil, last, nil
	}

	tooMany := f.chunks + begun - int64(len(fold.Drop)) - ledger.MaxChunks
	oldest, err := f.store.OldestChunks(ctx, f.job.Ref, int(begun+maxExpired))
	if err != nil {
		return nil, last, err
	}

	// A chunk that cannot be read covers older ticks than the next one, so it is deleted with that one.
	var unreadable []string
	for i, c := range oldest {
		// The newest chunk is compared, and may be in the fold already.
		if fold.Newest != nil && c.ID >= fold.Newest.ID {
			break
		}

		chunk, _, err := ledger.Decode(c.Value)
		isOther := err == nil && chunk.UID != f.job.UID // of a deleted task
		isExpired := err == nil && (isOther || chunk.LastTick().Before(f.oldestTick))

		switch {
		case int64(i) < tooMany, isExpired:
			ids = append(append(ids, unreadable...), c.ID)
			unreadable = nil
		case err == nil:
			return ids, last, nil
		default:
			unreadable = append(unreadable, c.ID)
		}

		switch {
		case err == nil && !isOther && chunk.LastTick().After(last):
			last = chunk.LastTick()
		case err != nil && int64(i) < tooMany:
			last = f.now // its contents are unknown
		}
	}

	return ids, last, nil
}

// lostRecords remembers when this node last deleted records without counting them because etcd was full. Other nodes
// do not know this time, because nothing can be written to a full etcd. The zero value is ready to use.
type lostRecords struct {
	mu   sync.Mutex
	last time.Time
}

// note remembers that records are deleted at a time.
func (l *lostRecords) note(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if now.After(l.last) {
		l.last = now
	}
}

// until returns the last such time; zero if there is none.
func (l *lostRecords) until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.last
}
