package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// MaxSent is how many triggers one transaction sends at most: those of one end to all dependents of a task, or of several ends.
const MaxSent = task.MaxDependents

// SourceRead is what the owner of a source decides from which triggers it sends. All of it is read at one revision.
type SourceRead struct {
	Revision    int64
	EntryCreate int64  // create revision of the source's entry; 0: there is none
	UID         string // of the source; empty if its entry cannot be read

	Cursor    record.Cursor // the zero value: there is none, or it cannot be read
	CursorMod int64         // mod revision of the cursor; 0: there is none
	CursorErr error         // why the cursor cannot be read

	Subscribers []record.Dependent // those that can be read, ordered by name
	Unreadable  []string           // the names of the others
	Oldest      int64              // mod revision of the oldest subscriber; 0: there is none

	// Records are the records of the source's history that were created from the given revision on, without late results. They
	// are in the order of their create revisions and runs.
	Records []Past
}

// SentUpTo returns the position after which ends of the source may still be owed to a subscriber.
func (r *SourceRead) SentUpTo() record.Cursor {
	return laterOf(r.Cursor, record.Cursor{Create: r.Oldest})
}

// laterOf returns the later of two positions.
func laterOf(a, b record.Cursor) record.Cursor {
	if a.Compare(b) < 0 {
		return b
	}
	return a
}

// sentUpTo is SourceRead.SentUpTo for records that were not decoded. cursor is nil if there is none.
func sentUpTo(cursor *mvccpb.KeyValue, oldest int64) record.Cursor {
	position := record.Cursor{Create: oldest}
	if cursor == nil {
		return position
	}

	c, err := record.DecodeCursor(cursor.Value)
	if err != nil {
		return position
	}

	return laterOf(c, position)
}

// oldestMod returns the lowest mod revision of some keys; 0 if there are none.
func oldestMod(all []*mvccpb.KeyValue) (oldest int64) {
	for _, e := range all {
		if oldest == 0 || e.ModRevision < oldest {
			oldest = e.ModRevision
		}
	}

	return oldest
}

// Position returns the place of a record in the order in which triggers are sent.
func (p Past) Position() record.Cursor { return record.Cursor{Create: p.Create, Run: p.ID} }

// ReadSource reads what the owner of a source needs to send triggers. It lists the history from create revision from on.
func (s Shards) ReadSource(ctx context.Context, ref record.Ref, from int64) (r SourceRead, err error) {
	history, subscribers := s.keys.HistoryOf(ref), s.keys.Subscribers(ref)
	res, err := s.etcd.Txn(ctx).Then(
		clientv3.OpGet(s.keys.Entry(ref)), clientv3.OpGet(s.keys.Sent(ref)), clientv3.OpGet(subscribers, withPrefix(subscribers)),
		clientv3.OpGet(history, withPrefix(history), clientv3.WithKeysOnly(), clientv3.WithMinCreateRev(from)),
	).Commit()
	if err != nil {
		return r, fmt.Errorf("read the ended runs of %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	read := kv.Result{Responses: res.Responses}
	r.Revision = res.Header.Revision

	if e := readAt(read, 0); e != nil {
		var parts record.EntryParts
		r.EntryCreate = e.CreateRevision
		if parts.Split(e.Value) == nil {
			r.UID = string(parts.UID)
		}
	}

	if e := readAt(read, 1); e != nil {
		r.CursorMod = e.ModRevision
		r.Cursor, r.CursorErr = record.DecodeCursor(e.Value)
		if r.CursorErr != nil {
			r.Cursor = record.Cursor{}
		}
	}

	all := res.Responses[2].GetResponseRange().Kvs
	r.Oldest = oldestMod(all)
	for _, e := range all {
		d, ok, err := record.DecodeDependent(s.keys, e)
		switch {
		case !ok:
		case err != nil:
			r.Unreadable = append(r.Unreadable, d.Name)
		default:
			r.Subscribers = append(r.Subscribers, d)
		}
	}

	r.Records = slices.DeleteFunc(pastOf(history, res.Responses[3].GetResponseRange().Kvs, false), func(p Past) bool { return p.Late })
	slices.SortFunc(r.Records, func(a, b Past) int { return a.Position().Compare(b.Position()) })

	return r, nil
}

// EndedAt reads records of a source's history at a revision, in their order. A record that does not exist has no value.
func (s Shards) EndedAt(ctx context.Context, ref record.Ref, records []Past, rev int64) ([]PastRecord, error) {
	list := make([]PastRecord, 0, len(records))
	if len(records) == 0 {
		return list, nil
	}

	history := s.keys.HistoryOf(ref)
	ops := make([]clientv3.Op, len(records))
	for i, p := range records {
		ops[i] = clientv3.OpGet(history+p.ID, clientv3.WithRev(rev))
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("read the ended runs of %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	read := kv.Result{Responses: res.Responses}
	for i, p := range records {
		list = append(list, PastRecord{Past: p, Value: readAt(read, i).GetValue()})
	}

	return list, nil
}

// TriggerSend is what the owner of a source writes when runs of it have ended.
type TriggerSend struct {
	Source      record.Ref
	EntryCreate int64            // create revision of the source's entry: the source must not have been deleted
	CursorMod   int64            // mod revision of the cursor that Cursor replaces; 0: there is none
	Cursor      record.Cursor    // the last of the ended runs
	Triggers    []record.Pending // at most MaxSent
}

// SendTriggers writes triggers together with the cursor of their source. It returns task.ErrFenced if a fence does not hold, and
// task.ErrConflict if the source or its cursor has changed. Then nothing is written.
//
// It compares neither the watermark nor the freezes, so that it can run while a commit is in flight. Two copies of a transaction
// whose outcome was unknown compare the same cursor, so at most one of them is applied. A dependent may be deleted at any time:
// a trigger without its task is deleted by the owner of the shard.
func (s Shards) SendTriggers(ctx context.Context, f Fences, t TriggerSend) error {
	cursor := s.keys.Sent(t.Source)
	txn := kv.Txn{
		If:   []clientv3.Cmp{f.Owner.Compare(), f.Node.Compare(), kv.CreateIs(s.keys.Entry(t.Source), t.EntryCreate), isUnchanged(cursor, t.CursorMod)},
		Then: make([]clientv3.Op, 0, len(t.Triggers)+1),
	}

	for i := range t.Triggers {
		p := &t.Triggers[i]
		txn.Then = append(txn.Then, clientv3.OpPut(p.Key(s.keys), record.Encode(p.Trigger)))
	}
	txn.Then = append(txn.Then, clientv3.OpPut(cursor, record.Encode(t.Cursor)))

	if err := s.writeFenced(ctx, f, txn); err != nil {
		return fmt.Errorf("send the triggers of %s: %w", t.Source, err)
	}

	return nil
}

// SourceCursor is a source, and up to which of its ended runs its owner believes that triggers were sent.
type SourceCursor struct {
	Ref    record.Ref
	SentTo record.Cursor
}

// SourcesAtOnce is how many sources a caller of HaveUnsent may ask about at once.
const SourcesAtOnce = 20

// HaveUnsent reports, for each of some sources, whether its history has records after a position.
func (s Shards) HaveUnsent(ctx context.Context, sources []SourceCursor) ([]bool, error) {
	ops := make([]clientv3.Op, len(sources))
	for i, source := range sources {
		prefix := s.keys.HistoryOf(source.Ref)
		ops[i] = clientv3.OpGet(prefix, withPrefix(prefix), clientv3.WithKeysOnly(), clientv3.WithMinCreateRev(cmp.Or(source.SentTo.Create, 1)))
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("look for ended runs of sources: %w: %w", task.ErrUnavailable, err)
	}

	unsent := make([]bool, len(sources))
	for i, source := range sources {
		past := pastOf(s.keys.HistoryOf(source.Ref), res.Responses[i].GetResponseRange().Kvs, false)
		unsent[i] = slices.ContainsFunc(past, func(p Past) bool { return !p.Late && p.Position().Compare(source.SentTo) > 0 })
	}

	return unsent, nil
}

// TakeTrigger deletes a trigger that still has the given mod revision, because the commit contains its outcome.
func (c *Commit) TakeTrigger(key string, mod int64) {
	c.addDelete(key, mod)
}
