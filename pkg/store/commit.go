package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
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
// requests of 1.5 MiB (--max-request-bytes). Half leaves room for 64 siblings.
const (
	maxParts = 64
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
	Watermark Watermark

	keys   Keys
	guards []guard
	ops    []clientv3.Op
	bytes  int
}

// NewCommit begins a commit that, so far, writes nothing but the watermark.
func (s *Store) NewCommit(shard int, f Fences, known int64, w Watermark) *Commit {
	return &Commit{Shard: shard, Fences: f, Known: known, Watermark: w, keys: s.keys}
}

// Fits reports whether there is room for n more records of some bytes in all.
func (c *Commit) Fits(n, bytes int) bool {
	return len(c.guards)+2*n+3 <= maxParts && len(c.ops)+2*n+1 <= maxParts && c.bytes+bytes <= maxBytes
}

// Empty reports whether nothing but the watermark would be written.
func (c *Commit) Empty() bool { return len(c.ops) == 0 }

// guard is what the writer knows of a key that it touches or relies on.
type guard struct {
	key string
	cmp clientv3.Cmp
	rev int64
	of  func(*mvccpb.KeyValue) int64
}

func (g guard) holds(e *mvccpb.KeyValue) bool {
	if e == nil {
		return g.rev == 0
	}
	return g.of(e) == g.rev
}

// knownAt demands that a record is the one known by its mod revision; 0: that
// it is not there.
func (c *Commit) knownAt(key string, mod int64) {
	c.guard(guard{key, unchanged(key, mod), mod, (*mvccpb.KeyValue).GetModRevision})
}

// sameSession demands that a node's key is the one known by its create
// revision; 0: that the node is absent.
func (c *Commit) sameSession(node string, create int64) {
	key := c.keys.Node(node)
	c.guard(guard{key, clientv3.Compare(clientv3.CreateRevision(key), "=", create), create, (*mvccpb.KeyValue).GetCreateRevision})
}

func (c *Commit) guard(g guard) {
	if !slices.ContainsFunc(c.guards, func(o guard) bool { return o.key == g.key && o.rev == g.rev }) {
		c.guards = append(c.guards, g)
		c.bytes += len(g.key) + 32
	}
}

func (c *Commit) put(key, value string) {
	c.ops = append(c.ops, clientv3.OpPut(key, value))
	c.bytes += len(key) + len(value) + 32
}

func (c *Commit) delete(key string, mod int64) {
	c.knownAt(key, mod)
	c.ops = append(c.ops, clientv3.OpDelete(key))
	c.bytes += len(key) + 32
}

// GuardEntry demands that a task's entry is the one known.
func (c *Commit) GuardEntry(ref Ref, mod int64) { c.knownAt(c.keys.Entry(ref), mod) }

// PutEntry writes an entry over the one known.
func (c *Commit) PutEntry(ref Ref, e task.Entry, mod int64) {
	c.GuardEntry(ref, mod)
	c.put(c.keys.Entry(ref), encode(e))
}

// Dispatch puts an attempt into a node's inbox, new, if that node's session is
// the one known by its key's create revision.
func (c *Commit) Dispatch(ref Ref, a task.Assigned, session int64) {
	key := c.keys.Run(a.Node, ref, a.ID)
	c.sameSession(a.Node, session)
	c.knownAt(key, 0)
	c.put(key, encodeAssigned(a))
}

// Enqueue puts a waiting run into the queue, new.
func (c *Commit) Enqueue(ref Ref, w task.Waiting) {
	key := c.keys.Queued(ref, w.ID)
	c.knownAt(key, 0)
	c.put(key, encodeWaiting(w))
}

// Requeue writes a waiting run over the one known: its reason has changed.
func (c *Commit) Requeue(ref Ref, w task.Waiting, mod int64) {
	key := c.keys.Queued(ref, w.ID)
	c.knownAt(key, mod)
	c.put(key, encodeWaiting(w))
}

// Dequeue takes a waiting run out of the queue.
func (c *Commit) Dequeue(ref Ref, id string, mod int64) { c.delete(c.keys.Queued(ref, id), mod) }

// Record puts a record into history: a tick, or ticks, that did not run.
func (c *Commit) Record(ref Ref, r task.Run) {
	c.put(c.keys.Ended(ref, r.ID), encodeEnded(r))
}

// EndLost ends an attempt whose node is gone: its record is the one known, and
// the node is still absent. next, if a retry follows, waits in the queue.
func (c *Commit) EndLost(h Held, end task.Run, next *task.Waiting) {
	c.sameSession(h.Node, 0)
	c.delete(c.keys.Run(h.Node, h.Ref(), h.ID), h.Mod)
	if next != nil {
		c.Enqueue(h.Ref(), *next)
		return
	}
	c.Record(h.Ref(), end)
}

// AskCancel asks an attempt's node to end it.
func (c *Commit) AskCancel(h Held, who string) {
	key := c.keys.Run(h.Node, h.Ref(), h.ID)
	h.CancelRequested, h.CancelledBy = true, who
	c.knownAt(key, h.Mod)
	c.put(key, encodeAssigned(h.Assigned))
}

// Purge deletes a record of history of a task that is no more.
func (c *Commit) Purge(key string, mod int64) { c.delete(key, mod) }

// Conflict is a commit that changed nothing because records are not as they
// were known. It is a task.ErrConflict.
type Conflict struct {
	Records []ShardEvent // records of the shard, as they are now
	Runs    []string     // keys of attempts
	Nodes   []string     // nodes whose session is another, or gone
}

func (c *Conflict) Error() string {
	return fmt.Sprintf("%d records, %d runs, %d nodes are not as they were known", len(c.Records), len(c.Runs), len(c.Nodes))
}

// Is makes a Conflict a task.ErrConflict.
func (c *Conflict) Is(target error) bool { return target == task.ErrConflict }

// Commit writes c and returns its revision, which is the watermark's new mod
// revision; c.Watermark is what is there then. An error after which nobody knows is settled before it returns, by
// the nonce: it tries until it knows or ctx ends.
//
// It returns task.ErrFenced (stop: the shard or the session is gone), ErrMoved
// (open again), ErrDamaged, a *Conflict (decide again), or an error of etcd
// that proves that nothing was written.
func (s *Store) Commit(ctx context.Context, c *Commit) (int64, error) {
	var nonces []string // of this content
	var wait again
	for {
		c.Watermark.Nonce = task.NewUID()
		nonces = append(nonces, c.Watermark.Nonce)
		res, err := s.writes.Commit(ctx, c.txn())
		if err == nil && res.Succeeded {
			return res.Revision, nil
		}
		if err == nil {
			return s.lostCommit(c, res, nonces)
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

func (c *Commit) txn() kv.Txn {
	mark := c.keys.Watermark(c.Shard)
	t := kv.Txn{
		If:   []clientv3.Cmp{c.Fences.Owner.Compare(), c.Fences.Node.Compare(), unchanged(mark, c.Known)},
		Then: append(slices.Clone(c.ops), clientv3.OpPut(mark, encode(c.Watermark))),
		Else: []clientv3.Op{clientv3.OpGet(c.Fences.Owner.Key), clientv3.OpGet(c.Fences.Node.Key), clientv3.OpGet(mark)},
	}
	for _, g := range c.guards {
		t.If = append(t.If, g.cmp)
		t.Else = append(t.Else, clientv3.OpGet(g.key))
	}
	return t
}

// lostCommit says which compare was lost.
func (s *Store) lostCommit(c *Commit, res kv.Result, nonces []string) (int64, error) {
	mark := readAt(res, 2)
	if mark == nil {
		return 0, fmt.Errorf("commit shard %d: %w", c.Shard, ErrDamaged)
	}
	if mark.ModRevision != c.Known {
		w, err := DecodeWatermark(mark.Value)
		if err == nil && slices.Contains(nonces, w.Nonce) {
			c.Watermark.Nonce = w.Nonce // an earlier copy of this very content won
			return mark.ModRevision, nil
		}
	}
	if !c.Fences.Owner.Holds(readAt(res, 0)) || !c.Fences.Node.Holds(readAt(res, 1)) {
		return 0, fmt.Errorf("commit shard %d: %w", c.Shard, task.ErrFenced)
	}
	if mark.ModRevision != c.Known {
		return 0, fmt.Errorf("commit shard %d: %w", c.Shard, ErrMoved)
	}
	conflict := &Conflict{}
	for i, g := range c.guards {
		if now := readAt(res, 3+i); !g.holds(now) {
			s.addMoved(conflict, g.key, now)
		}
	}
	return 0, conflict
}

func (s *Store) addMoved(c *Conflict, key string, now *mvccpb.KeyValue) {
	if _, ok := s.keys.ParseShard(key); ok {
		c.Records = append(c.Records, s.shardEvent(key, now))
		return
	}
	if _, ok := s.keys.ParseRun(key); ok {
		c.Runs = append(c.Runs, key)
		return
	}
	c.Nodes = append(c.Nodes, key[len(s.keys.Nodes()):])
}

// Open opens a shard: an empty commit that ends every delayed write of any
// earlier worker. It returns the watermark as it is from then on and its mod
// revision, at which the shard is to be loaded.
func (s *Store) Open(ctx context.Context, shard int, f Fences) (Watermark, int64, error) {
	for {
		e, err := s.getOne(ctx, s.keys.Watermark(shard))
		if err != nil {
			return Watermark{}, 0, fmt.Errorf("open shard %d: %w", shard, err)
		}
		if e == nil {
			return Watermark{}, 0, fmt.Errorf("open shard %d: %w", shard, ErrDamaged)
		}
		w, err := DecodeWatermark(e.Value)
		if err != nil {
			return Watermark{}, 0, fmt.Errorf("open shard %d: %w", shard, err)
		}
		c := s.NewCommit(shard, f, e.ModRevision, w)
		rev, err := s.Commit(ctx, c)
		if errors.Is(err, ErrMoved) {
			continue // a delayed write came first; this is what opening is for
		}
		if err != nil {
			return Watermark{}, 0, fmt.Errorf("open shard %d: %w", shard, err)
		}
		return c.Watermark, rev, nil
	}
}
