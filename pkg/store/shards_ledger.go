package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// LedgerChunk is a chunk of a task's ledger. Package ledger reads its value.
type LedgerChunk struct {
	ID    string // the last part of the key
	Mod   int64  // mod revision
	Value []byte // nil if only the keys were read
}

// HistoryToTrim is what a trim decides from, read at one revision.
type HistoryToTrim struct {
	Past     []Past       // in the order of their keys
	Values   [][]byte     // the values of the first of them
	Revision int64        // at which they were read
	Newest   *LedgerChunk // the newest chunk of the ledger; nil: the ledger is empty
	Chunks   int64        // how many there are
	Dead     []DeadRun    // the dead runs of the task, and of a deleted task of the same name

	// Sent is the position up to which the subscribers of the task need no record: that of its cursor, or that of its oldest
	// subscriber. nil: it has no subscribers.
	Sent *record.Cursor
}

// KeepUnsent removes, from records that a trim wants to delete, those of which the subscribers of the task have not been sent
// what they are owed, and the late results of such runs. It returns the others.
func (h *HistoryToTrim) KeepUnsent(gone []Past) []Past {
	if h.Sent == nil {
		return gone
	}

	unsent := map[string]bool{}
	for _, p := range gone {
		if !p.Late && p.Position().Compare(*h.Sent) > 0 {
			unsent[p.ID] = true
		}
	}

	return slices.DeleteFunc(gone, func(p Past) bool { return unsent[p.Run()] })
}

// DeadRun is a dead run in the records of a task.
type DeadRun struct {
	Run    string
	Create int64 // create revision of its record
}

// OldestDead returns the create revision of the oldest dead run of the task with a uid; 0 if there is none.
func (h *HistoryToTrim) OldestDead(uid string) (oldest int64) {
	for _, d := range h.Dead {
		if task.RunBelongs(d.Run, uid) && (oldest == 0 || d.Create < oldest) {
			oldest = d.Create
		}
	}

	return oldest
}

// Value returns the value of a record, if it was read.
func (h *HistoryToTrim) Value(p Past) (value []byte, ok bool) {
	i, found := findPast(h.Past, p)
	if !found || i >= len(h.Values) {
		return nil, false
	}

	return h.Values[i], true
}

// findPast returns where a record is in a list that is in the order of keys.
func findPast(sorted []Past, p Past) (int, bool) {
	i, found := slices.BinarySearchFunc(sorted, p.ID, func(p Past, id string) int { return strings.Compare(p.ID, id) })
	return i, found && sorted[i] == p
}

// TrimRead says what HistoryToTrim reads.
type TrimRead struct {
	States  bool // as in History
	Values  int  // of how many records the values, in the order of their keys; 0: none
	Records int  // about how many records the history has
}

// isWhole reports whether one range reads all values. A second range, with the keys of all records, costs about half as
// much for a record as the first one, with the values.
func (r TrimRead) isWhole() bool { return r.States || r.Records < 2*r.Values }

// HistoryToTrim lists a task's history and its ledger. A trim that deletes no records but the first ones, whose values it
// has read, needs no second read.
func (s Shards) HistoryToTrim(ctx context.Context, ref record.Ref, read TrimRead) (list HistoryToTrim, err error) {
	history, ledger, dead := s.keys.HistoryOf(ref), s.keys.LedgerOf(ref), s.keys.Dead(ref)
	end := clientv3.GetPrefixRangeEnd(history)

	newestChunk := []clientv3.OpOption{withPrefix(ledger), clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(1)}

	subscribers := s.keys.Subscribers(ref)

	// The fifth range lists the history, and the last one has the values. That may be the same one.
	ops := make([]clientv3.Op, 0, 6)
	ops = append(ops, clientv3.OpGet(ledger, newestChunk...), clientv3.OpGet(dead, withPrefix(dead), clientv3.WithKeysOnly()),
		clientv3.OpGet(s.keys.Sent(ref)), clientv3.OpGet(subscribers, withPrefix(subscribers), clientv3.WithKeysOnly()))
	switch {
	case read.States:
		ops = append(ops, clientv3.OpGet(history, clientv3.WithRange(end), clientv3.WithLimit(rangePage)))
	case read.isWhole():
		limit := min(max(read.Values, read.Records), rangePage)
		ops = append(ops, clientv3.OpGet(history, clientv3.WithRange(end), clientv3.WithLimit(int64(limit))))
	default:
		ops = append(ops, clientv3.OpGet(history, clientv3.WithRange(end), clientv3.WithLimit(rangePage), clientv3.WithKeysOnly()))
		if read.Values > 0 {
			ops = append(ops, clientv3.OpGet(history, clientv3.WithRange(end), clientv3.WithLimit(int64(read.Values))))
		}
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return list, fmt.Errorf("list history of %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	list.Revision = res.Header.Revision
	list.Values = valuesOf(res.Responses[len(ops)-1].GetResponseRange().Kvs, read.Values)

	// A history that is longer than expected is listed in pages.
	page := res.Responses[4].GetResponseRange()
	all := page.Kvs
	if page.More && len(all) > 0 {
		var keysOnly []clientv3.OpOption
		if !read.States {
			keysOnly = append(keysOnly, clientv3.WithKeysOnly())
		}

		rest, _, err := s.getRange(ctx, keyAfter(all), end, list.Revision, keysOnly...)
		if err != nil {
			return list, fmt.Errorf("list history of %s: %w", ref, err)
		}
		all = append(all, rest...)
	}

	if all := res.Responses[3].GetResponseRange().Kvs; len(all) > 0 {
		position := sentUpTo(readAt(kv.Result{Responses: res.Responses}, 2), oldestMod(all))
		list.Sent = &position
	}

	for _, e := range res.Responses[1].GetResponseRange().Kvs {
		list.Dead = append(list.Dead, DeadRun{Run: string(e.Key)[len(dead):], Create: e.CreateRevision})
	}

	chunks := res.Responses[0].GetResponseRange()
	list.Past, list.Chunks = pastOf(history, all, read.States), chunks.Count
	if len(chunks.Kvs) > 0 {
		newest := ledgerChunk(ledger, chunks.Kvs[0])
		list.Newest = &newest
	}

	return list, nil
}

// valuesOf returns the values of all keys that were read; nil if none are wanted.
func valuesOf(all []*mvccpb.KeyValue, wanted int) [][]byte {
	if wanted == 0 {
		return nil
	}

	values := make([][]byte, len(all))
	for i, e := range all {
		values[i] = e.Value
	}

	return values
}

// ledgerChunk returns the chunk in e. prefix is that of the ledger.
func ledgerChunk(prefix string, e *mvccpb.KeyValue) LedgerChunk {
	return LedgerChunk{ID: string(e.Key)[len(prefix):], Mod: e.ModRevision, Value: e.Value}
}

// OldestRun returns the first key in a task's history, which is that of the oldest tick, and how many keys there are. The id
// is empty if there is none.
func (s Shards) OldestRun(ctx context.Context, ref record.Ref) (id string, count int64, err error) {
	history := s.keys.HistoryOf(ref)
	res, err := s.readKey(ctx, history, withPrefix(history), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
	if err != nil {
		return "", 0, fmt.Errorf("read the oldest record of %s: %w", ref, err)
	}

	if len(res.Kvs) > 0 {
		id = string(res.Kvs[0].Key)[len(history):]
	}

	return id, res.Count, nil
}

// PastRecord is a record in the history of a task, with its value.
type PastRecord struct {
	Past
	Value []byte
}

// MaxFold is how many records one fold deletes at most.
const MaxFold = maxTrims

// ReadToFold reads the values of records in a task's history, at most MaxFold, and of the newest chunk of its ledger. It
// omits records that are gone or that were changed since they were listed. since is the id of a chunk: only that one and
// later ones are read. If it is empty, all are.
func (s Shards) ReadToFold(ctx context.Context, ref record.Ref, listed []Past, since string) (records []PastRecord, newest *LedgerChunk, err error) {
	history, ledger := s.keys.HistoryOf(ref), s.keys.LedgerOf(ref)
	ops := make([]clientv3.Op, 0, len(listed)+1)
	for _, p := range listed {
		ops = append(ops, clientv3.OpGet(history+p.ID))
	}
	ops = append(ops, clientv3.OpGet(ledger+since, clientv3.WithRange(clientv3.GetPrefixRangeEnd(ledger))))

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, nil, fmt.Errorf("read history of %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	read := kv.Result{Responses: res.Responses}
	for i, p := range listed {
		if e := readAt(read, i); e != nil && e.ModRevision == p.Mod {
			records = append(records, PastRecord{Past: p, Value: e.Value})
		}
	}

	if chunks := res.Responses[len(listed)].GetResponseRange().Kvs; len(chunks) > 0 {
		last := ledgerChunk(ledger, chunks[len(chunks)-1])
		newest = &last
	}

	return records, newest, nil
}

// OldestChunks reads the first chunks of a task's ledger, at most limit.
func (s Shards) OldestChunks(ctx context.Context, ref record.Ref, limit int) ([]LedgerChunk, error) {
	ledger := s.keys.LedgerOf(ref)
	res, err := s.readKey(ctx, ledger, withPrefix(ledger), clientv3.WithLimit(int64(limit)))
	if err != nil {
		return nil, fmt.Errorf("read the ledger of %s: %w", ref, err)
	}

	chunks := make([]LedgerChunk, len(res.Kvs))
	for i, e := range res.Kvs {
		chunks[i] = ledgerChunk(ledger, e)
	}

	return chunks, nil
}

// HistoryFold moves records of a task from its history to its ledger.
type HistoryFold struct {
	Ref         record.Ref
	EntryCreate int64 // create revision of the task's entry: the task must not have been deleted

	Gone    []Past // the records to delete; at most MaxFold
	Compare []Past // those of them that must be unchanged, because their owner may have extended them

	Listed   []Past // the whole history, in the order of the keys. Records of Gone that are adjacent in it may be deleted together
	Revision int64  // at which it was listed

	Newest *LedgerChunk  // the newest chunk, as it was read; nil: the ledger must be empty
	Put    []LedgerChunk // the chunks to write, in the order of their keys. The first may replace Newest
	Drop   []string      // the ids of chunks to delete
}

// MaxFoldOps is how many operations a fold may have: its deletions and its puts.
const MaxFoldOps = 126

// Ops returns how many operations the fold has at most.
func (h *HistoryFold) Ops() int { return len(h.Gone) + len(h.Put) + len(h.Drop) }

// rewritesNewest reports whether the fold replaces the newest chunk.
func (h *HistoryFold) rewritesNewest() bool {
	return h.Newest != nil && len(h.Put) > 0 && h.Put[0].ID == h.Newest.ID
}

// pastSpan is a part of a history, from the first to the last record in it, all of whose records are deleted.
type pastSpan struct{ first, last string }

// contains reports whether a record is in the span.
func (s pastSpan) contains(p Past) bool { return s.first <= p.ID && p.ID <= s.last }

// minPastSpan is how many records a span must have. One deletion of a range, with its comparison, costs as much as those of
// five keys.
const minPastSpan = 6

// splitGone divides the records to delete into those of spans and single ones.
func (h *HistoryFold) splitGone() (spans []pastSpan, single []Past) {
	isGone := make([]bool, len(h.Listed)+1) // the last one ends a span
	for _, p := range h.Gone {
		i, found := findPast(h.Listed, p)
		if found {
			isGone[i] = true
		} else {
			single = append(single, p)
		}
	}

	begin := 0
	for i, gone := range isGone {
		if gone {
			continue
		}

		if i-begin >= minPastSpan {
			spans = append(spans, pastSpan{first: h.Listed[begin].ID, last: h.Listed[i-1].ID})
		} else {
			single = append(single, h.Listed[begin:i]...)
		}
		begin = i + 1
	}

	return spans, single
}

// comparisons returns what must hold, besides the fences. They guard against four writers: the API deletes the task, the
// owner extends a range of skipped ticks, a run ends whose record is in one of the spans, and another fold, or a late copy
// of one, adds the same records to the ledger.
func (s Shards) comparisons(h *HistoryFold, spans []pastSpan) []clientv3.Cmp {
	all := []clientv3.Cmp{kv.CreateIs(s.keys.Entry(h.Ref), h.EntryCreate)}

	// Two folds that rewrite the same chunk exclude each other by its mod revision. A fold that rewrites none, because there is
	// none, or because the newest one was written by hand, compares that no chunk has begun. Another fold may still have moved
	// some of the same records to an older chunk, so it compares all of them.
	ledger := s.keys.LedgerOf(h.Ref)
	end := clientv3.GetPrefixRangeEnd(ledger)
	compare := h.Gone
	switch {
	case h.Newest == nil:
		all = append(all, isAbsent(ledger).WithRange(end))
	case h.rewritesNewest():
		all = append(all, isUnchanged(ledger+h.Newest.ID, h.Newest.Mod))
		compare = h.toCompare(spans)
	default:
		all = append(all, isUnchanged(ledger+h.Newest.ID, h.Newest.Mod), isAbsent(ledger+h.Newest.ID+"\x00").WithRange(end))
	}

	history := s.keys.HistoryOf(h.Ref)
	for _, p := range compare {
		all = append(all, isUnchanged(history+p.ID, p.Mod))
	}

	// No record in a span was added or changed since the history was listed.
	for _, span := range spans {
		from, end := s.rangeOf(h.Ref, span)
		all = append(all, clientv3.Compare(clientv3.ModRevision(from), "<", h.Revision+1).WithRange(end))
	}

	return all
}

// toCompare returns the records that a fold compares which rewrites the newest chunk.
func (h *HistoryFold) toCompare(spans []pastSpan) []Past {
	if len(h.Gone) == 0 {
		return nil
	}

	// A late copy, whose records were deleted without a fold meanwhile, must not count them. One record stands for all,
	// because the copy has deleted all or none.
	compare := []Past{h.Gone[0]}
	for _, p := range h.Compare {
		isInSpan := slices.ContainsFunc(spans, func(s pastSpan) bool { return s.contains(p) })
		if p != h.Gone[0] && !isInSpan {
			compare = append(compare, p)
		}
	}

	return compare
}

// rangeOf returns the range of keys of a span. It is in the task's history, whatever the ids are: keys.Ended would return a key
// elsewhere for an id that looks like that of a part.
func (s Shards) rangeOf(ref record.Ref, span pastSpan) (from, end string) {
	history := s.keys.HistoryOf(ref)
	return history + span.first, history + span.last + "\x00"
}

// FoldHistory applies a fold. It returns task.ErrFenced if a fence does not hold, and task.ErrConflict if the task, the
// ledger or a compared record has changed, or if a record was added between those that are deleted together. Then nothing is
// changed.
//
// Like TrimHistory, it does not compare the watermark. While etcd is full, it fails (see NoSpace).
func (s Shards) FoldHistory(ctx context.Context, f Fences, h HistoryFold) error {
	// A fold that rewrites no chunk compares each record.
	var spans []pastSpan
	single := h.Gone
	if h.rewritesNewest() {
		spans, single = h.splitGone()
	}

	t := kv.Txn{
		If:   append([]clientv3.Cmp{f.Owner.Compare(), f.Node.Compare()}, s.comparisons(&h, spans)...),
		Then: make([]clientv3.Op, 0, len(spans)+len(single)+len(h.Put)+len(h.Drop)),
	}

	for _, span := range spans {
		from, end := s.rangeOf(h.Ref, span)
		t.Then = append(t.Then, clientv3.OpDelete(from, clientv3.WithRange(end)))
	}

	history := s.keys.HistoryOf(h.Ref)
	for _, p := range single {
		t.Then = append(t.Then, clientv3.OpDelete(history+p.ID))
	}
	for _, c := range h.Put {
		t.Then = append(t.Then, clientv3.OpPut(s.keys.LedgerChunk(h.Ref, c.ID), string(c.Value)))
	}
	for _, id := range h.Drop {
		t.Then = append(t.Then, clientv3.OpDelete(s.keys.LedgerChunk(h.Ref, id)))
	}

	if err := s.writeFenced(ctx, f, t); err != nil {
		return fmt.Errorf("fold history of %s: %w", h.Ref, err)
	}

	return nil
}

// DeleteLedger deletes the ledger of a task whose newest chunk is unchanged. In its place, it writes mark, whose id must be
// greater than that of the newest chunk; nil: nothing. The errors are those of FoldHistory.
func (s Shards) DeleteLedger(ctx context.Context, f Fences, ref record.Ref, newest LedgerChunk, mark *LedgerChunk) error {
	ledger := s.keys.LedgerOf(ref)
	t := kv.Txn{
		If: []clientv3.Cmp{
			f.Owner.Compare(), f.Node.Compare(), isUnchanged(ledger+newest.ID, newest.Mod),
			isAbsent(ledger + newest.ID + "\x00").WithRange(clientv3.GetPrefixRangeEnd(ledger)),
		},
		Then: []clientv3.Op{clientv3.OpDelete(ledger, withPrefix(ledger))},
	}
	if mark != nil {
		t.Then = []clientv3.Op{
			clientv3.OpDelete(ledger, clientv3.WithRange(ledger+newest.ID+"\x00")), clientv3.OpPut(ledger+mark.ID, string(mark.Value)),
		}
	}

	if err := s.writeFenced(ctx, f, t); err != nil {
		return fmt.Errorf("delete the ledger of %s: %w", ref, err)
	}

	return nil
}

// writeFenced commits a transaction that compares the fences, among other things. If it changes nothing, the error is
// task.ErrFenced or task.ErrConflict.
func (s *conn) writeFenced(ctx context.Context, f Fences, t kv.Txn) error {
	_, err := s.commitFenced(ctx, f, t)
	return err
}

// commitFenced is writeFenced for callers that need the result.
func (s *conn) commitFenced(ctx context.Context, f Fences, t kv.Txn) (kv.Result, error) {
	res, err := s.writeTxn(ctx, t)
	if err != nil || res.Succeeded {
		return res, err
	}

	// Conflicts are rare. So what has changed is read in a request of its own, which etcd does not write to its log. Without
	// a read in it, any member would answer at once, also one that lags behind. The answer could be wrong, and its revision
	// lower than one that was seen before: the node would conclude that etcd was restored from an older snapshot.
	fences, err := s.etcd.Txn(ctx).If(f.Owner.Compare(), f.Node.Compare()).Then(clientv3.OpGet(f.Owner.Key, clientv3.WithCountOnly())).Commit()
	switch {
	case err != nil:
		return res, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	case !fences.Succeeded:
		return res, task.ErrFenced
	}

	return res, task.ErrConflict
}
