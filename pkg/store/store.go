package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Store reads and writes the records of one cluster. It embeds a separate type for each kind of
// record. They share one connection, because a transaction may write records of several kinds.
// A Store is safe for concurrent use.
type Store struct {
	*conn
	ofTasks
	ofRuns
	ofShards
	ofInbox
	ofNodes
	ofOwners
	ofAccess
	ofSecrets
	ofFreezes
	ofAlerts
	ofBoots
	ofCluster
	ofEtcd
	ofEvents
}

// These aliases are the names under which Store embeds its parts. An embedded field with
// the name Tasks would hide the method Tasks.
type (
	ofTasks   = Tasks
	ofRuns    = Runs
	ofShards  = Shards
	ofInbox   = Inbox
	ofNodes   = Nodes
	ofOwners  = Owners
	ofAccess  = Access
	ofSecrets = Secrets
	ofFreezes = Freezes
	ofAlerts  = Alerts
	ofBoots   = Boots
	ofCluster = Cluster
	ofEtcd    = etcdadmin.Etcd
	ofEvents  = eventlog.Log
)

// New returns a Store that sends all conditional writes through writes. It understands the
// newest format.
func New(etcd *kv.Client, writes kv.Committer, keys record.Keys) *Store {
	return newOverConn(&conn{etcd: etcd, writes: writes, alone: writes, keys: keys}).Understanding(NewestFormat)
}

// newOverConn returns a Store whose parts share the connection c.
func newOverConn(c *conn) *Store {
	return &Store{
		c, Tasks{c}, Runs{c}, Shards{c}, Inbox{c}, Nodes{c}, Owners{c},
		Access{c}, Secrets{c}, Freezes{c}, Alerts{c}, Boots{c}, Cluster{c}, etcdadmin.New(c.etcd, Nodes{c}), eventlog.New(c.etcd, c.keys),
	}
}

// Batching returns the same Store, except that the many small writes of tasks, runs and shards
// pass through batch. Leased keys do not, because an expired lease makes etcd refuse a whole
// request. Rare writes of keys that every commit compares do not either, because all requests
// would have to wait for them.
func (s *Store) Batching(batch kv.Committer) *Store {
	b := *s.conn
	b.writes = batch

	return newOverConn(&b)
}

// Keys returns the keys of the cluster.
func (s *Store) Keys() record.Keys { return s.keys }

// Client returns the etcd client, for mirrors that follow whole prefixes.
func (s *Store) Client() *kv.Client { return s.etcd }

// conn is the connection that the parts of a Store share, with the reads and writes that all of
// them need.
type conn struct {
	etcd   *kv.Client
	writes kv.Committer // for records of tasks, runs, shards and secrets; may combine writes in one request
	alone  kv.Committer // for nodes, owners, freezes, tokens and the cluster; sends each write separately
	keys   record.Keys
	format *formats // shared by all Stores that Batching derives from one

	authority Authority // on whose behalf it writes; nil: the node's own
}

// writeTxn commits a transaction once. An error that leaves the outcome open wraps
// task.ErrUnknown; any other error wraps task.ErrUnavailable, and nothing was written.
func (s *conn) writeTxn(ctx context.Context, t kv.Txn) (kv.Result, error) {
	return s.commit(ctx, s.writes, t)
}

// writeAlone is like writeTxn for a transaction that must not share a request with others.
func (s *conn) writeAlone(ctx context.Context, t kv.Txn) (kv.Result, error) {
	return s.commit(ctx, s.alone, t)
}

func (s *conn) commit(ctx context.Context, c kv.Committer, t kv.Txn) (kv.Result, error) {
	if s.authority != nil {
		return s.commitAs(ctx, c, t)
	}
	return commitWrite(ctx, c, t)
}

// commitWrite commits t through c and classifies the error. Comparisons that do not hold are no
// error: the caller checks Result.Succeeded.
func commitWrite(ctx context.Context, c kv.Committer, t kv.Txn) (kv.Result, error) {
	res, err := c.Commit(ctx, t)
	switch {
	case err == nil:
		return res, nil
	case kv.Unknown(err):
		return res, fmt.Errorf("%w: %w", task.ErrUnknown, err)
	}

	return res, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
}

// commitAsLeader commits t if the leader's term holds, and returns the revision. It returns task.ErrFenced if the term is
// over, and task.ErrConflict if another comparison of t failed.
func (s *conn) commitAsLeader(ctx context.Context, term kv.Fence, t kv.Txn) (int64, error) {
	t.If, t.Else = append(t.If, term.Compare()), []clientv3.Op{clientv3.OpGet(term.Key)}
	res, err := s.writeAlone(ctx, t)
	switch {
	case err != nil:
		return 0, err
	case !res.Succeeded && !term.Holds(readAt(res, 0)):
		return 0, task.ErrFenced
	case !res.Succeeded:
		return 0, task.ErrConflict
	}

	return res.Revision, nil
}

// readKey reads a key or a range. The read is linearizable. Its error wraps
// task.ErrUnavailable.
func (s *conn) readKey(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	res, err := s.etcd.Get(ctx, key, opts...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	return res, nil
}

// getOne reads one key. It returns nil if the key is absent.
func (s *conn) getOne(ctx context.Context, key string) (*mvccpb.KeyValue, error) {
	res, err := s.readKey(ctx, key)
	if err != nil || len(res.Kvs) == 0 {
		return nil, err
	}
	return res.Kvs[0], nil
}

// getAll reads all keys with a prefix in pages. All pages are read at one revision, which it
// returns.
func (s *conn) getAll(ctx context.Context, prefix string, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, int64, error) {
	return s.getAllAt(ctx, prefix, 0, opts...)
}

// getAllAt is like getAll, but reads at a given revision. 0 means the current one.
func (s *conn) getAllAt(ctx context.Context, prefix string, rev int64, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, int64, error) {
	return s.getRange(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), rev, opts...)
}

// rangePage is how many keys getRange reads in one request, with their values.
const rangePage = 2000

// getRange is like getAllAt for the keys from one key until before another.
func (s *conn) getRange(ctx context.Context, from, end string, rev int64, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, int64, error) {
	size := rangePage
	if op := clientv3.OpGet(from, opts...); op.IsKeysOnly() {
		size = kv.KeysPageSize
	}

	var all []*mvccpb.KeyValue
	pages := kv.NewPages(s.etcd, from, end, size, opts...)
	for pages.More() {
		page, at, err := s.nextPage(ctx, pages, rev)
		if err != nil {
			return nil, 0, err
		}

		// The first page determines the revision of the others.
		all, rev = append(all, page...), at
	}

	return all, rev, nil
}

// nextPage reads the next page at a revision; 0 means the current one. Its error wraps
// task.ErrUnavailable.
func (s *conn) nextPage(ctx context.Context, pages *kv.Pages, rev int64) (page []*mvccpb.KeyValue, at int64, err error) {
	page, at, err = pages.Next(ctx, rev)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	return page, at, nil
}

// keyAfter returns the first key that can follow a page of keys.
func keyAfter(page []*mvccpb.KeyValue) string {
	return string(page[len(page)-1].Key) + "\x00"
}

// isAbsent is a comparison that holds if the key does not exist.
func isAbsent(key string) clientv3.Cmp {
	return kv.CreateIs(key, 0)
}

// isUnchanged is a comparison that holds if the key still has this mod revision. 0 means that
// the key must be absent.
func isUnchanged(key string, modRevision int64) clientv3.Cmp {
	return kv.ModIs(key, modRevision)
}

// withPrefix is the option that extends a read or a deletion to all keys with the prefix.
func withPrefix(prefix string) clientv3.OpOption {
	return clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix))
}

// readAt returns the key that the n-th operation of a transaction has read, or nil if the key
// is absent. If the operation is a range read, it returns the first key.
func readAt(res kv.Result, n int) *mvccpb.KeyValue {
	if n >= len(res.Responses) {
		return nil
	}

	r := res.Responses[n].GetResponseRange()
	if r == nil || len(r.Kvs) == 0 {
		return nil
	}

	return r.Kvs[0]
}

// conflictBackoff is the pause between attempts of a write. It doubles from 20 ms up to a second.
type conflictBackoff struct{ wait time.Duration }

// waitBackoff waits before the next attempt. It returns the error of ctx if that ends first.
func (c *conflictBackoff) waitBackoff(ctx context.Context) error {
	c.wait = min(max(2*c.wait, 20*time.Millisecond), time.Second)
	if !clock.Sleep(ctx, c.wait) {
		return context.Cause(ctx)
	}

	return nil
}

// sweepPage is how many tombstones a sweep reads at a time. Those of them that are old are
// deleted in one transaction, which compares that none of them has been written since.
const sweepPage = 100

// sweepOld deletes the keys with a prefix for which old returns true. It reads about most keys at one revision,
// beginning after the key after, which is empty for the first call. next is the key after which
// the following call should begin, or empty if the last key has been reached.
func (s *conn) sweepOld(ctx context.Context, prefix, after string, most int, old func(*mvccpb.KeyValue) bool) (removed int, next string, err error) {
	pages := kv.NewPages(s.etcd, max(prefix, after+"\x00"), clientv3.GetPrefixRangeEnd(prefix), sweepPage)
	rev := int64(0)

	for looked := 0; looked < most; looked += sweepPage {
		page, at, err := s.nextPage(ctx, pages, rev)
		if err != nil {
			return removed, next, fmt.Errorf("look for old tombstones: %w", err)
		}
		rev = at

		n, err := s.removeOld(ctx, page, old)
		removed += n
		if err != nil {
			return removed, next, err
		}
		if !pages.More() {
			return removed, "", nil
		}

		next = string(page[len(page)-1].Key)
	}

	return removed, next, nil
}

// removeOld deletes those of the keys for which old returns true, in one transaction, and
// returns their number. If one of them was written meanwhile, it deletes none of them.
func (s *conn) removeOld(ctx context.Context, found []*mvccpb.KeyValue, old func(*mvccpb.KeyValue) bool) (int, error) {
	var t kv.Txn
	for _, e := range found {
		if !old(e) {
			continue
		}

		key := string(e.Key)
		t.If = append(t.If, isUnchanged(key, e.ModRevision))
		t.Then = append(t.Then, clientv3.OpDelete(key))
	}

	if len(t.Then) == 0 {
		return 0, nil
	}

	res, err := s.writeTxn(ctx, t)
	if err != nil {
		return 0, fmt.Errorf("remove old tombstones: %w", err)
	}
	// A key was written meanwhile. The next sweep deletes the others.
	if !res.Succeeded {
		return 0, nil
	}

	return len(t.Then), nil
}

// eachKey reads keys, 100 in each request, and calls f for each of them in order. e is nil if
// the key is absent. Keys of different requests may be read at different revisions.
func (s *conn) eachKey(ctx context.Context, keys []string, f func(i int, e *mvccpb.KeyValue)) error {
	i := 0
	return s.eachOf(ctx, keys, func(r *etcdserverpb.RangeResponse) {
		var e *mvccpb.KeyValue
		if len(r.Kvs) > 0 {
			e = r.Kvs[0]
		}

		f(i, e)
		i++
	})
}

// eachOf is like eachKey for callers that also need the revision of the read.
func (s *conn) eachOf(ctx context.Context, keys []string, f func(*etcdserverpb.RangeResponse)) error {
	for chunk := range slices.Chunk(keys, 100) {
		ops := make([]clientv3.Op, len(chunk))
		for i, key := range chunk {
			ops[i] = clientv3.OpGet(key)
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
		}

		for _, r := range res.Responses {
			f(r.GetResponseRange())
		}
	}

	return nil
}

// NoSpace reports whether an error of this package was caused by an etcd that has exceeded its
// quota. The write may have been applied nevertheless.
func NoSpace(err error) bool {
	return kv.NoSpace(err)
}

// directory is the set of keys that begin with parent, a name and '/'. The parent ends in '/'.
type directory struct{ parent, name string }

// prefix returns the beginning of the keys of a directory.
func (d directory) prefix() string { return d.parent + d.name + "/" }

// eachDirectory executes reads for each directory directly below some parents, and calls f for each answer; i is the index
// of the read among those of its directory. Parents must not contain each other. All reads must be at the revision rev.
//
// known are directories that probably have keys, for example the inboxes of the nodes that are present. No directory that
// has keys at the revision is missed if it is not among them: eachDirectory also looks for a key in each gap between the
// known ones. The gaps are usually empty, so everything is read in a single round. A search from one directory to the next
// would not do: for each range, etcd counts all keys up to its end.
func (s *conn) eachDirectory(
	ctx context.Context, parents []string, known []directory, rev int64,
	reads func(directory) []clientv3.Op, f func(d directory, i int, r *etcdserverpb.RangeResponse),
) error {
	// pendingRead is a read of a directory or, if end is set, the search of a gap that ends there.
	type pendingRead struct {
		op  clientv3.Op
		dir directory // of a gap: only the parent
		i   int
		end string
	}
	var pending []pendingRead

	addReads := func(d directory) {
		for i, op := range reads(d) {
			pending = append(pending, pendingRead{op: op, dir: d, i: i})
		}
	}
	addGap := func(parent, from, end string) {
		if from < end {
			op := clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithRev(rev), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
			pending = append(pending, pendingRead{op: op, dir: directory{parent: parent}, end: end})
		}
	}

	below := map[string][]directory{}
	for _, d := range known {
		below[d.parent] = append(below[d.parent], d)
	}

	for _, parent := range parents {
		// The order of directories is that of their keys: "a-b/" comes before "a/".
		list := below[parent]
		slices.SortFunc(list, func(a, b directory) int { return cmp.Compare(a.prefix(), b.prefix()) })

		from := parent
		for _, d := range slices.Compact(list) {
			addGap(parent, from, d.prefix())
			addReads(d)
			from = clientv3.GetPrefixRangeEnd(d.prefix())
		}
		addGap(parent, from, clientv3.GetPrefixRangeEnd(parent))
	}

	for len(pending) > 0 {
		round := pending
		pending = nil

		ops := make([]clientv3.Op, len(round))
		for i, p := range round {
			ops[i] = p.op
		}

		err := s.eachResponse(ctx, ops, func(i int, r *etcdserverpb.RangeResponse) {
			p := round[i]
			switch {
			case p.end == "":
				f(p.dir, p.i, r)
			case len(r.Kvs) > 0:
				// This is the first key of a directory that is not known. Others may follow it.
				d := directory{parent: p.dir.parent}
				d.name, _, _ = strings.Cut(strings.TrimPrefix(string(r.Kvs[0].Key), d.parent), "/")
				addReads(d)
				addGap(d.parent, clientv3.GetPrefixRangeEnd(d.prefix()), p.end)
			}
		})
		if err != nil {
			return err
		}
	}

	return nil
}
