package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ErrMoved means that another writer's watermark is there: the worker must open
// its shard again.
var ErrMoved = errors.New("the watermark was written by someone else")

// ErrDamaged means that a shard has no watermark. It is never made anew: that
// would decide ticks a second time.
var ErrDamaged = errors.New("the shard has no watermark")

// etcd takes 128 compares and 128 operations in a transaction (--max-txn-ops),
// of which one that shares a request leaves one to each of its siblings, and
// requests of 1.5 MiB (--max-request-bytes). So commits of four shards that are
// as large as can be go into one request.
const (
	maxParts = 124
	maxBytes = 1 << 20
)

// Fences are what must hold for a worker to write its shard.
type Fences struct {
	Owner kv.Fence // the owner key's mod revision
	Node  kv.Fence // the own node key's create revision
}

// Commit is the one kind of write by which an owner changes its shard. Build it
// with the methods below, then hand it to Store.Commit. Each method says what
// the writer knows of what it touches; if that is not so, nothing is written.
type Commit struct {
	Shard     int
	Fences    Fences
	Known     int64 // the watermark's mod revision
	Watermark record.Watermark
	// Freezes is the mod revision of the record of freezes by which the writer
	// decided; 0: there is none. Every commit compares it, so that none is decided
	// without a freeze from that freeze's revision on.
	Freezes int64
	// ResolvedAs is how an unknown outcome was resolved: OutcomeApplied or
	// OutcomeNotFound; empty if the outcome was known at once. Store.Commit sets it.
	ResolvedAs string

	moves   bool  // the watermark's time moves
	revised int64 // if it does: the mod revision of the shard's key revised, as known

	keys     record.Keys
	entries  string // the prefix of the shard's entries
	guards   []guard
	sessions []session
	writes   []writing
	bytes    int
}

// writing is a record to be put, or, without a value, deleted. An operation of etcd's
// client is many times as large, and made when it is known how many there are.
type writing struct {
	key   string
	value []byte
}

func (w writing) op() clientv3.Op {
	if w.value == nil {
		return clientv3.OpDelete(w.key)
	}
	return opPut(w.key, w.value)
}

// opPut is clientv3.OpPut without another copy of the value.
func opPut(key string, value []byte) clientv3.Op {
	op := clientv3.OpPut(key, "")
	op.WithValueBytes(value)
	return op
}

// How an unknown outcome was resolved: an earlier copy of the commit was found by its nonce, or none was:
// then none was applied, or a later write has replaced the nonce.
const (
	OutcomeApplied  = "ours"
	OutcomeNotFound = "not_ours"
)

// session is a node's that the commit relies on, and the prefix of what it writes
// into its inbox.
type session struct {
	node   string
	create int64
	inbox  string
}

// NewCommit begins a commit that, so far, writes nothing but the watermark.
func (s Shards) NewCommit(shard int, f Fences, known int64, w record.Watermark) *Commit {
	return &Commit{Shard: shard, Fences: f, Known: known, Watermark: w, keys: s.keys, entries: s.keys.Entries(shard)}
}

// Fits reports whether there is room for n more records of some bytes in all, each
// with all that it may compare.
func (c *Commit) Fits(n, bytes int) bool { return c.room(2*n, n, bytes) }

// FitsTick is Fits for the claim of a tick: one record, which compares the entry.
func (c *Commit) FitsTick(bytes int) bool { return c.room(1, 1, bytes) }

// fixed is what a commit compares: fence, own node, watermark, freezes, and, if the
// watermark's time moves, revised.
const fixed = 5

// Moves says that the commit moves the watermark's time, and which edits it knows:
// those up to the mod revision of the shard's key revised. If there has been another
// since then, which may have given a task ticks that the watermark would pass,
// nothing is written. 0: there is no such key.
func (c *Commit) Moves(revised int64) { c.moves, c.revised = true, revised }

func (c *Commit) room(guards, ops, bytes int) bool {
	// One more of each: a record may bring a node's session, and the watermark is written.
	return fixed+len(c.guards)+len(c.sessions)+guards+1 <= maxParts && len(c.writes)+ops+2 <= maxParts && c.bytes+bytes <= maxBytes
}

// Empty reports whether nothing but the watermark would be written.
func (c *Commit) Empty() bool { return len(c.writes) == 0 }

// guard is a record that the writer touches or relies on, and the mod revision
// that it knows of it; 0: it is not there.
type guard struct {
	key string
	mod int64
}

func (c *Commit) knownAt(key string, mod int64) {
	c.guards = append(c.guards, guard{key, mod})
	c.bytes += len(key) + 32
}

// sameSession demands that a node's key is the one known by its create
// revision; 0: that the node is absent.
func (c *Commit) sameSession(node string, create int64) *session {
	for i := range c.sessions {
		if s := &c.sessions[i]; s.node == node && s.create == create {
			return s
		}
	}

	inbox := c.keys.Inbox(node) + record.ShardName(c.Shard) + "/"
	c.sessions = append(c.sessions, session{node, create, inbox})
	return &c.sessions[len(c.sessions)-1]
}

func (c *Commit) put(key string, value []byte) {
	c.writes = append(c.writes, writing{key, value})
	c.bytes += len(key) + len(value) + 32
}

func (c *Commit) delete(key string, mod int64) {
	c.knownAt(key, mod)
	c.writes = append(c.writes, writing{key: key})
	c.bytes += len(key) + 32
}

// GuardEntry demands that a task's entry is the one known. task is
// namespace/name.
func (c *Commit) GuardEntry(task string, mod int64) { c.knownAt(c.entries+task, mod) }

// PutEntry writes an entry over the one known. task is namespace/name.
func (c *Commit) PutEntry(task string, e record.EntryParts, mod int64) {
	c.GuardEntry(task, mod)
	c.put(c.entries+task, record.EncodeParts(e))
}

// ChangeEntry writes another entry than the one that PutEntry was given for a task.
func (c *Commit) ChangeEntry(task string, e record.EntryParts) {
	key := c.entries + task

	for i := len(c.writes) - 1; i >= 0; i-- {
		if w := &c.writes[i]; w.key == key && w.value != nil {
			value := record.EncodeParts(e)
			c.bytes += len(value) - len(w.value)
			w.value = value

			return
		}
	}
}

// Claim puts the attempt of a tick into a node's inbox, if that node's session is
// the one known by its key's create revision. action is the attempt's as JSON.
//
// That the key is not there yet goes without a comparison: the run of a tick has
// its key from the one commit that decides the tick, and two of them cannot both
// find the watermark, the entry and the fence as they know them.
func (c *Commit) Claim(a *task.Assigned, action string, session int64) {
	inbox := c.sameSession(a.Node, session).inbox
	c.put(inbox+a.Namespace+"/"+a.Task+"/"+a.ID, record.EncodeAssigned(a, action))
}

// Dispatch is Claim for a run that has waited: its key must not be there, since an
// earlier attempt may have had the same.
func (c *Commit) Dispatch(a *task.Assigned, action string, session int64) {
	c.knownAt(c.sameSession(a.Node, session).inbox+a.Namespace+"/"+a.Task+"/"+a.ID, 0)
	c.Claim(a, action, session)
}

// Enqueue puts a waiting run into the queue, new.
func (c *Commit) Enqueue(ref record.Ref, w task.Waiting) {
	key := c.keys.Queued(ref, w.ID)
	c.knownAt(key, 0)
	c.put(key, record.EncodeWaiting(w))
}

// Requeue writes a waiting run over the one known: its reason has changed.
func (c *Commit) Requeue(ref record.Ref, w task.Waiting, mod int64) {
	key := c.keys.Queued(ref, w.ID)
	c.knownAt(key, mod)
	c.put(key, record.EncodeWaiting(w))
}

// Dequeue takes a waiting run out of the queue.
func (c *Commit) Dequeue(ref record.Ref, id string, mod int64) { c.delete(c.keys.Queued(ref, id), mod) }

// Record puts a record into history: a tick, or ticks, that did not run.
func (c *Commit) Record(ref record.Ref, r task.Run) {
	c.put(c.keys.Ended(ref, r.ID), record.EncodeEnded(r))
}

// Extend writes a record of history over the one known: more ticks that did not run.
func (c *Commit) Extend(ref record.Ref, r task.Run, mod int64) {
	key := c.keys.Ended(ref, r.ID)
	c.knownAt(key, mod)
	c.put(key, record.EncodeEnded(r))
}

// EndLost ends an attempt whose node is gone: its record is the one known, and
// the node is still absent. next, if a retry follows, waits in the queue; if none
// does, see Bury.
func (c *Commit) EndLost(h record.Held, end task.Run, next *task.Waiting) {
	c.sameSession(h.Node, 0)
	c.delete(c.keys.Run(h.Node, h.Ref(), h.ID), h.Mod)

	if next != nil {
		c.Enqueue(h.Ref(), *next)
		return
	}

	c.Record(h.Ref(), end)
}

// AskCancel asks an attempt's node to end it, for a reason: it becomes that of
// its end ("": task.ReasonCancelled). Of one that is asked already, the first
// reason stays.
func (c *Commit) AskCancel(h record.Held, who, reason string) {
	key := c.keys.Run(h.Node, h.Ref(), h.ID)

	if !h.CancelRequested {
		h.CancelRequested, h.CancelledBy, h.CancelReason = true, who, reason
	}

	c.knownAt(key, h.Mod)
	c.put(key, record.EncodeAssigned(&h.Assigned, record.Encode(h.Action)))
}

// Purge deletes a record of history of a task that is no more.
func (c *Commit) Purge(key string, mod int64) { c.delete(key, mod) }

// Conflict is a commit that changed nothing because records are not as they
// were known. It is a task.ErrConflict.
type Conflict struct {
	Records []ShardEvent // records of the shard, as they are now
	Runs    []string     // keys of attempts
	Nodes   []string     // nodes whose session is another, or gone
	// Freezes is the record of freezes as it is now, if it is not the one by which
	// the commit was decided; else nil.
	Freezes *FreezeRecord
	// Revised is the mod revision of the shard's key revised, if the commit was decided
	// without an edit that this tells of; else nil.
	Revised *int64
}

// OnlyRevised reports whether the commit was lost to an edit of which it touched
// nothing, and to nothing else.
func (c *Conflict) OnlyRevised() bool {
	return c.Revised != nil && len(c.Records)+len(c.Runs)+len(c.Nodes) == 0 && c.Freezes == nil
}

func (c *Conflict) Error() string {
	freezes := 0
	if c.Freezes != nil {
		freezes = 1
	}

	edits := 0
	if c.Revised != nil {
		edits = 1
	}

	return fmt.Sprintf("%d records, %d runs, %d nodes, %d freezes, %d revisions of schedules are not as they were known",
		len(c.Records), len(c.Runs), len(c.Nodes), freezes, edits)
}

// Is makes a Conflict a task.ErrConflict.
func (c *Conflict) Is(target error) bool { return target == task.ErrConflict }

// Commit writes c and returns its revision, which is the watermark's new mod
// revision; c.Watermark is what is there then. An error that leaves the outcome
// open is resolved before it returns, by the nonce: it tries until it knows or ctx
// ends.
//
// It returns task.ErrFenced (stop: the shard or the session is gone), ErrMoved
// (open again), ErrDamaged, a *Conflict (decide again), an error of etcd that
// proves that nothing was written, or task.ErrUnknown if ctx ended before the
// outcome was known.
func (s Shards) Commit(ctx context.Context, c *Commit) (int64, error) {
	var nonces []string // of this content
	var wait again

	for {
		c.Watermark.Nonce = task.NewUID()
		if nonces = append(nonces, c.Watermark.Nonce); len(nonces) > 1 {
			c.ResolvedAs = OutcomeNotFound // unless we find one of them
		}

		res, err := s.writes.Commit(ctx, c.txn())
		if err == nil && res.Succeeded {
			return res.Revision, nil
		}
		if err == nil {
			return s.explainRejection(ctx, c, res, nonces)
		}

		if errors.Is(err, rpctypes.ErrDuplicateKey) {
			// The transaction puts one key twice: two outcomes of one tick. The worker decides a
			// tick twice only if what it knows of the shard is older than etcd's records, so the
			// comparisons would have refused the commit as well. etcd looks for equal keys first.
			return 0, fmt.Errorf("commit shard %d: %w: %w", c.Shard, ErrMoved, err)
		}

		// After a copy of unknown fate, an error that is definite for this copy
		// says nothing of the first.
		if !kv.Unknown(err) && len(nonces) == 1 {
			return 0, fmt.Errorf("commit shard %d: %w: %w", c.Shard, task.ErrUnavailable, err)
		}
		// A read would settle nothing: the first copy may still arrive. The
		// same compares with a new nonce end it, whichever copy wins.
		if perr := wait.pause(ctx); perr != nil {
			return 0, fmt.Errorf("commit shard %d: %w: %w", c.Shard, task.ErrUnknown, perr)
		}
	}
}

// txn is c as a transaction. Its Else reads what tells whether the writer is to
// stop or to open again; what else was found changed is read when it was, which
// is rare.
func (c *Commit) txn() kv.Txn {
	mark := c.keys.Watermark(c.Shard)
	t := kv.Txn{
		ResolvedByCaller: true, // by the nonce
		If:               make([]clientv3.Cmp, 0, fixed+len(c.sessions)+len(c.guards)),
		Then:             make([]clientv3.Op, 0, len(c.writes)+1),
		Else:             []clientv3.Op{clientv3.OpGet(c.Fences.Owner.Key), clientv3.OpGet(c.Fences.Node.Key), clientv3.OpGet(mark)},
	}
	t.If = append(t.If, c.Fences.Owner.Compare(), c.Fences.Node.Compare(), unchanged(mark, c.Known), unchanged(c.keys.Freezes(), c.Freezes))
	if c.moves {
		t.If = append(t.If, unchanged(c.keys.Revised(c.Shard), c.revised))
	}

	for _, s := range c.sessions {
		t.If = append(t.If, kv.CreateIs(c.keys.Node(s.node), s.create))
	}

	for _, g := range c.guards {
		t.If = append(t.If, unchanged(g.key, g.mod))
	}

	for _, w := range c.writes {
		t.Then = append(t.Then, w.op())
	}

	t.Then = append(t.Then, opPut(mark, record.EncodeWatermark(c.Watermark)))

	return t
}

// explainRejection says why a commit's comparisons failed. It returns success if that is
// so because an earlier copy of this very commit was applied.
func (s Shards) explainRejection(ctx context.Context, c *Commit, res kv.Result, nonces []string) (int64, error) {
	mark := readAt(res, 2)
	if mark == nil {
		return 0, fmt.Errorf("commit shard %d: %w", c.Shard, ErrDamaged)
	}

	if mark.ModRevision != c.Known {
		w, err := record.DecodeWatermark(mark.Value)
		if err == nil && slices.Contains(nonces, w.Nonce) {
			c.Watermark.Nonce, c.ResolvedAs = w.Nonce, OutcomeApplied // an earlier copy of this very content won
			return mark.ModRevision, nil
		}
	}

	if !c.Fences.Owner.Holds(readAt(res, 0)) || !c.Fences.Node.Holds(readAt(res, 1)) {
		return 0, fmt.Errorf("commit shard %d: %w", c.Shard, task.ErrFenced)
	}
	if mark.ModRevision != c.Known {
		return 0, fmt.Errorf("commit shard %d: %w", c.Shard, ErrMoved)
	}

	conflict, err := s.moved(ctx, c)
	if err != nil {
		return 0, fmt.Errorf("commit shard %d: %w", c.Shard, err)
	}

	return 0, conflict
}

// moved reads what a commit that changed nothing had taken for known, and says
// what of it is otherwise. It may be nothing by now.
func (s Shards) moved(ctx context.Context, c *Commit) (*Conflict, error) {
	keys := make([]string, 0, len(c.guards)+len(c.sessions)+1)
	for _, g := range c.guards {
		keys = append(keys, g.key)
	}

	for _, n := range c.sessions {
		keys = append(keys, c.keys.Node(n.node))
	}

	freezes, revised := len(keys), len(keys)+1
	keys = append(keys, c.keys.Freezes())
	if c.moves {
		keys = append(keys, c.keys.Revised(c.Shard))
	}

	conflict, i := &Conflict{}, 0
	err := s.eachOf(ctx, keys, func(r *etcdserverpb.RangeResponse) {
		var now *mvccpb.KeyValue
		if len(r.Kvs) > 0 {
			now = r.Kvs[0]
		}

		switch {
		case i == revised:
			if now.GetModRevision() != c.revised {
				conflict.Revised = new(now.GetModRevision())
			}
		case i == freezes:
			if now.GetModRevision() != c.Freezes {
				conflict.Freezes = new(freezeRecord(now, r.Header.GetRevision()))
			}
		case i >= len(c.guards):
			if n := c.sessions[i-len(c.guards)]; now.GetCreateRevision() != n.create {
				conflict.Nodes = append(conflict.Nodes, n.node)
			}
		case now.GetModRevision() != c.guards[i].mod:
			s.addMoved(conflict, keys[i], now)
		}

		i++
	})

	return conflict, err
}

func (s Shards) addMoved(c *Conflict, key string, now *mvccpb.KeyValue) {
	if ev, ok := shardEvent(s.keys, key, now); ok {
		c.Records = append(c.Records, ev)
		return
	}
	c.Runs = append(c.Runs, key)
}

// Open opens a shard: an empty commit that ends every delayed write of any
// earlier worker. A new owner key or session has voided the writes under other
// fences already, as every commit compares both; the new watermark revision also
// voids those under the same fences, of an earlier worker on this node. See
// "Takeover" in docs/scheduler.md.
//
// It returns the watermark as it is from then on and its mod revision, at which
// the shard is to be loaded.
func (s Shards) Open(ctx context.Context, shard int, f Fences) (record.Watermark, int64, error) {
	for {
		res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(s.keys.Watermark(shard)), clientv3.OpGet(s.keys.Freezes())).Commit()
		if err != nil {
			return record.Watermark{}, 0, fmt.Errorf("open shard %d: %w: %w", shard, task.ErrUnavailable, err)
		}

		read := kv.Result{Responses: res.Responses}
		e := readAt(read, 0)
		if e == nil {
			return record.Watermark{}, 0, fmt.Errorf("open shard %d: %w", shard, ErrDamaged)
		}

		w, err := record.DecodeWatermark(e.Value)
		if err != nil {
			return record.Watermark{}, 0, fmt.Errorf("open shard %d: %w", shard, err)
		}

		c := s.NewCommit(shard, f, e.ModRevision, w)
		c.Freezes = readAt(read, 1).GetModRevision()

		rev, err := s.Commit(ctx, c)
		if errors.Is(err, ErrMoved) || errors.Is(err, task.ErrConflict) {
			continue // a delayed write, or a freeze, came first
		}
		if err != nil {
			return record.Watermark{}, 0, fmt.Errorf("open shard %d: %w", shard, err)
		}

		return c.Watermark, rev, nil
	}
}

// Bury puts the run of an attempt that EndLost has ended, without another to
// follow, among the dead of its task; nothing if somebody wanted it to end.
func (c *Commit) Bury(h record.Held, end task.Run) {
	if record.NeedsDeadLetter(h, end) {
		c.put(c.keys.DeadRun(h.Ref(), h.ID), record.EncodeDead(h, end))
	}
}

// BuryParent puts a run whose parts have failed among the dead of its task, as that
// which repeats these parts would begin.
func (c *Commit) BuryParent(ref record.Ref, end task.Run, env map[string]string) {
	end.Fan = end.Fan.Again()
	c.put(c.keys.DeadRun(ref, end.ID), record.EncodeWaiting(task.Waiting{Run: end, Env: env}))
}

// GuardQueued demands that a waiting run's record is the one known.
func (c *Commit) GuardQueued(ref record.Ref, id string, mod int64) {
	c.knownAt(c.keys.Queued(ref, id), mod)
}

// EndPart ends a part that is in no inbox and does not wait: it has never been given
// out, or nobody knows where it is. No record may tell of it.
func (c *Commit) EndPart(ref record.Ref, end task.Run) {
	c.knownAt(c.keys.Queued(ref, end.ID), 0)
	key := c.keys.Ended(ref, end.ID)
	c.knownAt(key, 0)
	c.put(key, record.EncodeEnded(end))
}
