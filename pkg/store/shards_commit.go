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

// ErrMoved means that another writer has changed the watermark. The worker must
// open its shard again.
var ErrMoved = errors.New("the watermark was written by someone else")

// ErrDamaged means that a shard has no watermark. Nothing ever recreates it,
// because a new watermark would cause ticks to be decided a second time (G3).
var ErrDamaged = errors.New("the shard has no watermark")

// maxParts and maxBytes limit the size of a commit. etcd accepts 128 compares and
// 128 operations in a transaction (--max-txn-ops) and requests of 1.5 MiB
// (--max-request-bytes). Each transaction that shares a request uses one of these
// operations, so four commits with maxParts operations still fit into one request.
const (
	maxParts = 124
	maxBytes = 1 << 20
)

// MaxCommitBytes is the size of the records for which an empty commit has room, beside its watermark and its comparisons.
const MaxCommitBytes = maxBytes - 16<<10

// Fences are the conditions under which a worker may write to its shard. Every
// commit compares both, so a worker that has lost its shard or its session cannot
// write (G1, G2).
type Fences struct {
	Owner kv.Fence // the owner key's mod revision
	Node  kv.Fence // the own node key's create revision

	// Gap is that of the session (see Session). No commit compares it.
	Gap *task.Gap
}

// Session is a session of a node: the fence of its key, and what the session's join found in the cluster's record.
type Session struct {
	Fence kv.Fence
	// Gap is what lost histories may have decided; nil if there were none. It is valid as long as the session: a restore ends all
	// sessions, and begins an epoch in which all nodes join anew. A mirror of the cluster's record would not do, because it may lag
	// behind the join, and what is in the gap would be decided without it.
	Gap *task.Gap
}

// Commit is the only kind of write by which an owner changes its shard. Build it
// with the methods below, then pass it to Shards.Commit. Each method adds a write
// together with a comparison of the state on which the caller decided. If any
// comparison fails, nothing is written.
type Commit struct {
	Shard     int
	Fences    Fences
	Known     int64            // the mod revision of the watermark that the commit replaces
	Watermark record.Watermark // the new watermark; Commit sets its nonce
	// Freezes is the mod revision of the record of freezes on which the decision is
	// based, or 0 if there is no such record. Every commit compares it, so no commit
	// succeeds after a freeze unless its writer knew of that freeze (G21).
	Freezes int64
	// ResolvedAs says how an unknown outcome was resolved: OutcomeApplied or
	// OutcomeNotFound. It is empty if the first answer was definite. Shards.Commit
	// sets it.
	ResolvedAs string

	// Subject identifies the task whose comparisons are added next: a number that the caller
	// chooses, or NoSubject. If one of them fails, Conflict.Subjects contains the number.
	Subject int

	moves   bool  // the commit moves the watermark's time
	revised int64 // with moves: the known mod revision of the shard's key revised

	keys     record.Keys
	entries  string    // the prefix of the shard's entries
	guards   []guard   // the keys whose mod revisions are compared
	sessions []session // the nodes whose create revisions are compared
	writes   []writing // without the watermark
	bytes    int       // an estimate of the size of the request
}

// NoSubject is the subject of comparisons that belong to no task.
const NoSubject = -1

// writing is a record to put or, if value is nil, a key to delete. An Op of etcd's
// client is many times larger, so toTxn creates the Ops when it knows their number.
type writing struct {
	key   string
	value []byte
}

// toOp returns the operation of etcd's client.
func (w writing) toOp() clientv3.Op {
	if w.value == nil {
		return clientv3.OpDelete(w.key)
	}
	return opPut(w.key, w.value)
}

// opPut is like clientv3.OpPut, but does not copy the value.
func opPut(key string, value []byte) clientv3.Op {
	op := clientv3.OpPut(key, "")
	op.WithValueBytes(value)
	return op
}

// These are the values of Commit.ResolvedAs. OutcomeApplied means that the watermark
// contains the nonce of an earlier copy of the commit, so that copy was applied.
// OutcomeNotFound means that it does not: either no earlier copy was applied, or a
// later write has replaced the nonce.
const (
	OutcomeApplied  = "ours"
	OutcomeNotFound = "not_ours"
)

// session is the session of a node on which the commit relies, identified by the
// create revision of the node's key. inbox is the prefix of this shard's records in
// the node's inbox.
type session struct {
	node   string
	create int64
	inbox  string
}

// NewCommit returns a commit that writes only the watermark w. known is the mod
// revision of the watermark that it replaces.
func (s Shards) NewCommit(shard int, f Fences, known int64, w record.Watermark) *Commit {
	return &Commit{
		Shard: shard, Fences: f, Known: known, Watermark: w, Subject: NoSubject,
		keys: s.keys, entries: s.keys.Entries(shard),
	}
}

// Fits reports whether the commit has room for n more records of the given total
// size in bytes, with up to two comparisons for each record.
func (c *Commit) Fits(n, bytes int) bool { return c.hasRoom(2*n, n, bytes) }

// FitsTick is like Fits for one tick: its record, the comparison of its task's entry, and
// the given number of more records.
func (c *Commit) FitsTick(more, bytes int) bool { return c.hasRoom(1+2*more, 1+more, bytes) }

// fixedComparisons is the number of comparisons in every commit: owner, own node, watermark,
// freezes and, if the watermark's time moves, revised.
const fixedComparisons = 5

// Moves declares that the commit moves the watermark's time. revised is the mod
// revision of the shard's revised key, as the caller knows it, or 0 if the key does
// not exist. A later edit may have given a task ticks before the new watermark, and
// those ticks would be lost. So if the key has changed, nothing is written (G4).
func (c *Commit) Moves(revised int64) { c.moves, c.revised = true, revised }

// hasRoom reports whether the commit has room for this many more comparisons, operations
// and bytes.
func (c *Commit) hasRoom(guards, ops, bytes int) bool {
	// Reserve one comparison for the session of a node that the record may add, and
	// operations for the put of the watermark.
	return fixedComparisons+len(c.guards)+len(c.sessions)+guards+1 <= maxParts && len(c.writes)+ops+2 <= maxParts && c.bytes+bytes <= maxBytes
}

// Empty reports whether the commit would write only the watermark.
func (c *Commit) Empty() bool { return len(c.writes) == 0 }

// guard is a key that the commit writes or relies on, and the mod revision that the
// writer knows. A mod of 0 means that the key must be absent.
type guard struct {
	key     string
	mod     int64
	subject int
}

// knownAt adds the comparison that a key still has the given mod revision.
func (c *Commit) knownAt(key string, mod int64) {
	c.guards = append(c.guards, guard{key, mod, c.Subject})
	c.bytes += len(key) + 32
}

// sameSession requires that the node's key still has the given create revision, or that the key
// is absent if create is 0. A commit compares each session only once, however many of its
// records rely on it.
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

// addPut adds a put without a comparison.
func (c *Commit) addPut(key string, value []byte) {
	c.writes = append(c.writes, writing{key, value})
	c.bytes += len(key) + len(value) + 32
}

// addDelete adds a deletion, and the comparison that the key has the given mod revision.
func (c *Commit) addDelete(key string, mod int64) {
	c.knownAt(key, mod)
	c.writes = append(c.writes, writing{key: key})
	c.bytes += len(key) + 32
}

// GuardEntry requires that a task's entry still has the given mod revision. task is
// namespace/name.
func (c *Commit) GuardEntry(task string, mod int64) { c.knownAt(c.entries+task, mod) }

// PutEntry replaces an entry that still has the given mod revision. task is
// namespace/name.
func (c *Commit) PutEntry(task string, e record.EntryParts, mod int64) {
	c.GuardEntry(task, mod)
	c.addPut(c.entries+task, record.EncodeParts(e))
}

// ChangeEntry replaces the entry that an earlier PutEntry of this commit wrote for
// the task. Without such a PutEntry it does nothing.
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

// Claim puts the attempt of a tick into a node's inbox. session is the create
// revision of the node's key; the commit requires that it is unchanged. action is the
// attempt's action as JSON.
//
// Claim does not compare that the inbox key is absent. Only the commit that decides
// the tick creates this key, and two such commits cannot both find the watermark, the
// entry and the fences unchanged.
func (c *Commit) Claim(a *task.Assigned, action string, session int64) {
	inbox := c.sameSession(a.Node, session).inbox
	c.addPut(inbox+a.Namespace+"/"+a.Task+"/"+a.ID, record.EncodeAssigned(a, action))
}

// Dispatch is like Claim, for a run that has waited. It also requires that the inbox
// key is absent, because an earlier attempt of the run may have used the same key.
func (c *Commit) Dispatch(a *task.Assigned, action string, session int64) {
	c.knownAt(c.sameSession(a.Node, session).inbox+a.Namespace+"/"+a.Task+"/"+a.ID, 0)
	c.Claim(a, action, session)
}

// Enqueue adds a waiting run to the queue. The run must not be in the queue yet.
func (c *Commit) Enqueue(ref record.Ref, w task.Waiting) {
	key := c.keys.Queued(ref, w.ID)
	c.knownAt(key, 0)
	c.addPut(key, record.EncodeWaiting(w))
}

// Requeue replaces the record of a waiting run that still has the given mod revision,
// for example because the reason why it waits has changed.
func (c *Commit) Requeue(ref record.Ref, w task.Waiting, mod int64) {
	key := c.keys.Queued(ref, w.ID)
	c.knownAt(key, mod)
	c.addPut(key, record.EncodeWaiting(w))
}

// Dequeue deletes a waiting run that still has the given mod revision from the queue.
func (c *Commit) Dequeue(ref record.Ref, id string, mod int64) {
	c.addDelete(c.keys.Queued(ref, id), mod)
}

// Record puts a record into the history, without a comparison of its key.
func (c *Commit) Record(ref record.Ref, r task.Run) {
	c.addPut(c.keys.Ended(ref, r.ID), record.EncodeEnded(r))
}

// Extend replaces a history record that still has the given mod revision, to add
// further ticks that did not run.
func (c *Commit) Extend(ref record.Ref, r task.Run, mod int64) {
	key := c.keys.Ended(ref, r.ID)
	c.knownAt(key, mod)
	c.addPut(key, record.EncodeEnded(r))
}

// EndLost ends an attempt whose node is gone. It requires that the attempt's record is
// unchanged and that the node's key is still absent. If next is not nil, it is put
// into the queue as the next attempt. Otherwise end is put into the history, and the
// caller also calls PutDeadLetter.
func (c *Commit) EndLost(h record.Held, end task.Run, next *task.Waiting) {
	c.sameSession(h.Node, 0)
	c.addDelete(c.keys.Run(h.Node, h.Ref(), h.ID), h.Mod)

	if next != nil {
		c.Enqueue(h.Ref(), *next)
		return
	}

	c.Record(h.Ref(), end)
}

// AskCancel requests that the attempt's node ends the attempt. reason becomes the
// reason of its end; an empty reason means task.ReasonCancelled. If a cancel was
// requested before, the first request and its reason remain.
func (c *Commit) AskCancel(h record.Held, who *task.Actor, reason string) {
	key := c.keys.Run(h.Node, h.Ref(), h.ID)

	if !h.CancelRequested {
		h.CancelRequested, h.CancelledBy, h.CancelReason = true, who, reason
	}

	c.knownAt(key, h.Mod)
	c.addPut(key, record.EncodeAssigned(&h.Assigned, record.Encode(h.Action)))
}

// Purge deletes a history record of a task that no longer exists.
func (c *Commit) Purge(key string, mod int64) { c.addDelete(key, mod) }

// Conflict is the error of a commit that wrote nothing because some of the state on
// which it was decided has changed. It matches task.ErrConflict.
//
// A conflict may be empty: the cause may have disappeared before the read, or Commit does not read it.
type Conflict struct {
	Records []ShardEvent // changed records of the shard, in their current state
	Runs    []string     // keys of changed attempts
	// Subjects are the subjects of all changed keys, also of those that are neither records
	// of a shard nor attempts. Each is contained once.
	Subjects []int
	Nodes    []string // nodes whose session has been replaced or has ended
	// Freezes is the current record of freezes if it has changed, else nil.
	Freezes *FreezeRecord
	// Revised is the current mod revision of the shard's revised key if the key has
	// changed, else nil.
	Revised *int64
}

// OnlyRevised reports whether the revised key is the only change that was found: an
// edit happened, but it changed nothing that the commit compares by itself.
func (c *Conflict) OnlyRevised() bool {
	return c.Revised != nil && len(c.Records)+len(c.Runs)+len(c.Nodes) == 0 && c.Freezes == nil
}

// Empty reports whether the reads after the commit have found no difference.
func (c *Conflict) Empty() bool {
	return len(c.Records)+len(c.Runs)+len(c.Subjects)+len(c.Nodes) == 0 && c.Freezes == nil && c.Revised == nil
}

// Error describes how much has changed.
func (c *Conflict) Error() string {
	freezes := 0
	if c.Freezes != nil {
		freezes = 1
	}

	edits := 0
	if c.Revised != nil {
		edits = 1
	}

	return fmt.Sprintf("%d records, %d runs, %d nodes, %d freezes, %d revisions of schedules have changed",
		len(c.Records), len(c.Runs), len(c.Nodes), freezes, edits)
}

// Is reports whether target is task.ErrConflict, for errors.Is.
func (c *Conflict) Is(target error) bool { return target == task.ErrConflict }

// Commit writes c and returns its revision, which is the watermark's new mod
// revision. c.Watermark is then the stored watermark. If an error leaves the outcome
// unknown, Commit retries until the nonce in the watermark resolves it or ctx ends, so
// a tick is never decided twice (G3).
//
// It returns one of these errors:
//
//   - task.ErrFenced: the shard or the session is lost; the worker must stop.
//   - ErrMoved: another writer changed the watermark; open the shard again.
//   - ErrDamaged: the shard has no watermark.
//   - *Conflict: a compared record has changed; decide again.
//   - task.ErrUnavailable: nothing was written, or the records that changed could not
//     be read.
//   - task.ErrUnknown: ctx ended before the outcome was known.
func (s Shards) Commit(ctx context.Context, c *Commit) (int64, error) {
	var nonces []string // the nonces of all copies of this commit that were sent
	var wait conflictBackoff

	for {
		c.Watermark.Nonce = task.NewUID()
		if nonces = append(nonces, c.Watermark.Nonce); len(nonces) > 1 {
			c.ResolvedAs = OutcomeNotFound // explainRejection overwrites it if it finds one of them
		}

		res, err := s.writes.Commit(ctx, c.toTxn())
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

		// A definite error proves only that this copy was not applied. If an earlier
		// copy has an unknown outcome, it may still have been applied.
		if !kv.Unknown(err) && len(nonces) == 1 {
			return 0, fmt.Errorf("commit shard %d: %w: %w", c.Shard, task.ErrUnavailable, err)
		}
		// A read cannot resolve the outcome, because an earlier copy may still be in
		// flight and arrive after the read. Send the same comparisons with a new nonce
		// instead. All copies compare the same mod revision of the watermark, and each
		// one changes it, so at most one copy is applied.
		if perr := wait.waitBackoff(ctx); perr != nil {
			return 0, fmt.Errorf("commit shard %d: %w: %w", c.Shard, task.ErrUnknown, perr)
		}
	}
}

// toTxn returns c as a transaction. Its Else branch reads the keys that decide whether
// the worker must stop or open the shard again. Other conflicts are rare, so
// findConflict reads the remaining keys only when a commit has failed.
func (c *Commit) toTxn() kv.Txn {
	mark := c.keys.Watermark(c.Shard)
	t := kv.Txn{
		ResolvedByCaller: true, // Commit resolves unknown outcomes by the nonce
		If:               make([]clientv3.Cmp, 0, fixedComparisons+len(c.sessions)+len(c.guards)),
		Then:             make([]clientv3.Op, 0, len(c.writes)+1),
		Else:             []clientv3.Op{clientv3.OpGet(c.Fences.Owner.Key), clientv3.OpGet(c.Fences.Node.Key), clientv3.OpGet(mark)},
	}
	// The order of the comparisons does not matter: one that does not hold rejects the commit.
	// The first four are in every commit (G1, G2, G3, G21). etcd refuses a transaction that is
	// too large, so hasRoom has counted all of them.
	t.If = append(t.If, c.Fences.Owner.Compare(), c.Fences.Node.Compare(), isUnchanged(mark, c.Known), isUnchanged(c.keys.Freezes(), c.Freezes))
	if c.moves {
		t.If = append(t.If, isUnchanged(c.keys.Revised(c.Shard), c.revised))
	}

	for _, s := range c.sessions {
		t.If = append(t.If, kv.CreateIs(c.keys.Node(s.node), s.create))
	}

	for _, g := range c.guards {
		t.If = append(t.If, isUnchanged(g.key, g.mod))
	}

	// The watermark comes last. A watch delivers the changes of a revision in their order, so a
	// follower that has received the watermark has received the whole commit.
	for _, w := range c.writes {
		t.Then = append(t.Then, w.toOp())
	}

	t.Then = append(t.Then, opPut(mark, record.EncodeWatermark(c.Watermark)))

	return t
}

// explainRejection returns the error for a commit whose comparisons failed. If they
// failed because an earlier copy of the same commit was applied, it returns that copy's
// revision and no error.
func (s Shards) explainRejection(ctx context.Context, c *Commit, res kv.Result, nonces []string) (int64, error) {
	// The order of these checks matters. An applied earlier copy counts even if the shard was
	// lost afterwards. A lost fence takes precedence over a changed watermark, because the
	// worker then has to stop instead of opening the shard again.
	mark := readAt(res, 2)
	if mark == nil {
		return 0, fmt.Errorf("commit shard %d: %w", c.Shard, ErrDamaged)
	}

	if mark.ModRevision != c.Known {
		w, err := record.DecodeWatermark(mark.Value)
		if err == nil && slices.Contains(nonces, w.Nonce) {
			c.Watermark.Nonce, c.ResolvedAs = w.Nonce, OutcomeApplied // an earlier copy of this commit was applied
			return mark.ModRevision, nil
		}
	}

	if !c.Fences.Owner.Holds(readAt(res, 0)) || !c.Fences.Node.Holds(readAt(res, 1)) {
		return 0, fmt.Errorf("commit shard %d: %w", c.Shard, task.ErrFenced)
	}
	if mark.ModRevision != c.Known {
		return 0, fmt.Errorf("commit shard %d: %w", c.Shard, ErrMoved)
	}

	conflict, err := s.findConflict(ctx, c)
	if err != nil {
		return 0, fmt.Errorf("commit shard %d: %w", c.Shard, err)
	}

	return 0, conflict
}

// findConflict reads the keys that a failed commit compared and returns those that differ from
// what its writer knew. The result may be empty, because these reads happen after the
// commit and a difference may be gone by then.
func (s Shards) findConflict(ctx context.Context, c *Commit) (*Conflict, error) {
	keys := make([]string, 0, len(c.guards)+len(c.sessions)+1)
	for _, g := range c.guards {
		keys = append(keys, g.key)
	}

	for _, n := range c.sessions {
		keys = append(keys, c.keys.Node(n.node))
	}

	// The freezes and the key revised follow the guards and the sessions; i counts them below.
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
			s.addMoved(conflict, keys[i], now, r.Header.GetRevision())

			if subject := c.guards[i].subject; subject != NoSubject && !slices.Contains(conflict.Subjects, subject) {
				conflict.Subjects = append(conflict.Subjects, subject)
			}
		}

		i++
	})

	return conflict, err
}

// addMoved adds a changed key to the conflict: to Records if it is a record of a shard, or to
// Runs if it is an attempt. rev is the revision of the read, at which an absent record did not
// exist.
func (s Shards) addMoved(c *Conflict, key string, now *mvccpb.KeyValue, rev int64) {
	if ev, ok := shardEvent(s.keys, key, now); ok {
		if ev.Deleted {
			ev.Mod = rev
		}

		c.Records = append(c.Records, ev)

		return
	}

	if _, ok := s.keys.ParseRun(key); ok {
		c.Runs = append(c.Runs, key)
	}
}

// Open opens a shard with an empty commit, after which no delayed write of an earlier
// worker can succeed. Every commit compares the owner key and the session, so writes
// under other fences are already void. The new mod revision of the watermark also voids
// delayed writes under the same fences, from an earlier worker on this node.
//
// Open returns the watermark and its mod revision, at which the caller must load the
// shard.
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
			continue // a delayed write or a freeze was applied after the read above
		}
		if err != nil {
			return record.Watermark{}, 0, fmt.Errorf("open shard %d: %w", shard, err)
		}

		return c.Watermark, rev, nil
	}
}

// PutDeadLetter puts the run of an attempt that EndLost has ended without a next attempt among
// the dead runs of its task. It does nothing if record.NeedsDeadLetter reports that the
// run needs no dead letter.
func (c *Commit) PutDeadLetter(h record.Held, end task.Run) {
	if record.NeedsDeadLetter(h, end) {
		c.addPut(c.keys.DeadRun(h.Ref(), h.ID), record.EncodeDead(h, end))
	}
}

// PutParentDeadLetter puts a fan-out run whose parts have failed among the dead runs of its
// task. The record has the form in which a retry of the failed parts begins.
func (c *Commit) PutParentDeadLetter(ref record.Ref, end task.Run, env map[string]string) {
	end.Fan = end.Fan.Again()
	c.addPut(c.keys.DeadRun(ref, end.ID), record.EncodeWaiting(task.Waiting{Run: end, Env: env}))
}

// GuardQueued requires that a waiting run's record still has the given mod revision.
func (c *Commit) GuardQueued(ref record.Ref, id string, mod int64) {
	c.knownAt(c.keys.Queued(ref, id), mod)
}

// EndPart ends a part that is neither in an inbox nor in the queue: it was never
// dispatched, or it cannot be found. The commit requires that neither the queue nor
// the ended parts contain a record of it.
func (c *Commit) EndPart(ref record.Ref, end task.Run) {
	c.knownAt(c.keys.Queued(ref, end.ID), 0)
	key := c.keys.Ended(ref, end.ID)
	c.knownAt(key, 0)
	c.addPut(key, record.EncodeEnded(end))
}
