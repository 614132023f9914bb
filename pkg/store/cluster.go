package store

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Cluster reads and writes what belongs to the whole cluster: its record (cluster), with the
// settings and the format of records, and counts over all shards.
//
// Nodes write only records in the format in force, and a node that does not understand it does
// not join: see NewestFormat.
type Cluster struct{ *conn }

// ClusterRecord is the record of the cluster as it was read.
type ClusterRecord struct {
	task.Cluster
	Mod int64  // mod revision of the key
	raw []byte // the value
}

// DecodeCluster decodes the record of the cluster.
func DecodeCluster(e *mvccpb.KeyValue) (ClusterRecord, error) {
	c, err := record.Decode[task.Cluster](e.Value)
	return ClusterRecord{Cluster: c, Mod: e.ModRevision, raw: e.Value}, err
}

// Cluster reads the record of the cluster. It returns task.ErrNotFound if there is none.
func (s Cluster) Cluster(ctx context.Context) (ClusterRecord, error) {
	e, err := s.getOne(ctx, s.keys.Cluster())
	if err == nil && e == nil {
		err = task.ErrNotFound
	}

	if err != nil {
		return ClusterRecord{}, fmt.Errorf("read the cluster's record: %w", err)
	}

	return DecodeCluster(e)
}

// ChangeCluster replaces the record old by c if the record is unchanged and the comparisons in
// more hold; otherwise it returns task.ErrConflict. Fields of the record that this version of
// Carillon does not know are preserved.
func (s Cluster) ChangeCluster(ctx context.Context, old ClusterRecord, c task.Cluster, more ...clientv3.Cmp) error {
	return s.changeCluster(ctx, old, c, more)
}

// changeCluster is ChangeCluster with further operations.
func (s Cluster) changeCluster(ctx context.Context, old ClusterRecord, c task.Cluster, more []clientv3.Cmp, ops ...clientv3.Op) error {
	value := record.KeepUnknownFields(old.raw, record.Encode(c), reflect.TypeFor[task.Cluster]())
	res, err := s.writeAlone(ctx, kv.Txn{
		If:   append([]clientv3.Cmp{isUnchanged(s.keys.Cluster(), old.Mod)}, more...),
		Then: append([]clientv3.Op{clientv3.OpPut(s.keys.Cluster(), value)}, ops...),
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("change the cluster's record: %w", err)
	}

	return nil
}

// Formats contains the record of the cluster and the nodes that are present, read at one
// revision. The next format is derived from them.
type Formats struct {
	Cluster  ClusterRecord
	Nodes    []task.Node
	Revision int64
}

// Formats reads the record of the cluster and its nodes.
func (s Cluster) Formats(ctx context.Context) (Formats, error) {
	nodes := s.keys.Nodes()
	res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(s.keys.Cluster()), clientv3.OpGet(nodes, withPrefix(nodes))).Commit()
	if err != nil {
		return Formats{}, fmt.Errorf("read the cluster's record and its nodes: %w: %w", task.ErrUnavailable, err)
	}

	e := readAt(kv.Result{Responses: res.Responses}, 0)
	if e == nil {
		return Formats{}, fmt.Errorf("the cluster's record: %w", task.ErrNotFound)
	}

	f := Formats{Nodes: record.DecodeNodes(s.keys, res.Responses[1].GetResponseRange().Kvs), Revision: res.Header.Revision}
	f.Cluster, err = DecodeCluster(e)

	return f, err
}

// Possible returns the newest format that all nodes understand, at least 1, and the nodes that
// understand no newer one.
func (f Formats) Possible() (format int, because []task.Node) {
	for _, n := range f.Nodes {
		switch u := n.Understands(); {
		case format == 0 || u < format:
			format, because = u, []task.Node{n}
		case u == format:
			because = append(because, n)
		}
	}

	return max(format, 1), because
}

// WaitsFor returns what must happen before the older format that is wanted can be put in force.
// It returns the empty string if nothing must, or if no older format is wanted.
func (f Formats) WaitsFor() string {
	wanted := f.Cluster.Written()
	if wanted >= f.Cluster.InForce() {
		return ""
	}

	var names []string
	for _, n := range f.Nodes {
		if n.Writes > wanted {
			names = append(names, n.Name)
		}
	}

	if len(names) == 0 {
		return ""
	}

	return "nodes that still write a newer format: " + strings.Join(names, ", ")
}

// SetFormat puts a format in force and sets the wanted format. It returns task.ErrConflict if
// the record has changed, or a node has joined, since f was read.
func (s Cluster) SetFormat(ctx context.Context, f Formats, format, wanted int) error {
	c := f.Cluster.Cluster
	c.Format, c.FormatWanted = format, wanted
	// The comparison holds if every node key was created at or before f.Revision. A node that
	// joins later compares the record instead, so one of the two writes fails.
	joined := clientv3.Compare(clientv3.CreateRevision(s.keys.Nodes()), "<", f.Revision+1).WithPrefix()
	return s.ChangeCluster(ctx, f.Cluster, c, joined)
}

// FirstEpoch is the epoch of a cluster that was never restored.
const FirstEpoch = 1

// newCluster returns the record of a new cluster.
func (s Cluster) newCluster(shards int, now time.Time) task.Cluster {
	return task.Cluster{ID: task.NewUID(), Shards: shards, Schema: 1, Epoch: FirstEpoch, Format: s.format.understood, CreatedAt: task.At(now)}
}

// CurrentLeader returns the name of the leader; "" if there is none.
func (s Cluster) CurrentLeader(ctx context.Context) (string, error) {
	leader := s.keys.Leader()
	// The leader of an election is the candidate whose key was created first.
	res, err := s.readKey(ctx, leader, withPrefix(leader), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(1))
	if err != nil {
		return "", fmt.Errorf("read the leader: %w", err)
	}
	if len(res.Kvs) == 0 {
		return "", nil
	}

	return string(res.Kvs[0].Value), nil
}

// CountActiveRuns returns the number of active runs in the whole cluster. etcd also visits the keys of runs that have ended
// since it has compacted its revisions, which may be many times more.
func (s Cluster) CountActiveRuns(ctx context.Context) (int64, error) {
	runs := s.keys.Runs()
	res, err := s.readKey(ctx, runs, withPrefix(runs), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("count active runs: %w", err)
	}

	return res.Count, nil
}

// CountSpecs returns the number of tasks. etcd visits each of them, and writes wait meanwhile, so this takes half a
// second for a million tasks.
func (s Cluster) CountSpecs(ctx context.Context) (int64, error) {
	specs := s.keys.Specs()
	res, err := s.etcd.Get(ctx, specs, withPrefix(specs), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("count tasks: %w: %w", task.ErrUnavailable, err)
	}

	return res.Count, nil
}

// FirstAccess are the access records with which a cluster begins. Nothing else ever creates
// an administrator by itself: an empty list of tokens in an existing cluster stays empty.
type FirstAccess struct {
	Namespaces []task.Namespace
	Bindings   []task.Binding
	Tokens     []record.Token
}

// OpenNamespace is a namespace whose tasks may be everything: for a cluster of one person.
func OpenNamespace(name string) task.Namespace {
	return task.Namespace{Name: name, RunAs: []string{"*"}, Groups: []string{"*"}, Shell: true, EnvFiles: []string{"*"}}
}

// OpenAccess is the access of a cluster of one person, and of tests: the namespace default is
// open, and nobody has a token.
func OpenAccess() FirstAccess {
	return FirstAccess{Namespaces: []task.Namespace{OpenNamespace("default")}}
}

// Bootstrap returns the cluster's record. If there is none, it creates it together with the
// first access records, after the watermark of every shard at time zero. If several nodes start
// together, one of them creates the record, and made is true for that one; all return the same.
// From then on, the store writes in the record's format. It returns ErrFormat if this version
// cannot read that format.
func (s Cluster) Bootstrap(ctx context.Context, shards int, now time.Time, first FirstAccess) (c task.Cluster, made bool, err error) {
	mine := s.newCluster(shards, now)
	var wait conflictBackoff

	for {
		e, err := s.getOne(ctx, s.keys.Cluster())
		if err != nil {
			return c, false, fmt.Errorf("read the cluster's record: %w", err)
		}

		if e != nil {
			r, err := DecodeCluster(e)
			if err == nil {
				err = s.Obey(r)
			}
			return r.Cluster, err == nil && r.ID == mine.ID, err
		}

		err = s.makeCluster(ctx, mine, first, now)
		// After a failed comparison or an unknown outcome, read the record: its id shows who
		// created it.
		if errors.Is(err, task.ErrUnknown) {
			err = wait.waitBackoff(ctx)
		}

		if err != nil {
			return c, false, fmt.Errorf("create the cluster's record: %w", err)
		}
	}
}

// HasAccessRecords reports whether the cluster has the fence of the access records, which was created together with its
// record. A cluster without it was created by a version without access control, or somebody has deleted it. Then no node
// knows who may do what.
func (s Cluster) HasAccessRecords(ctx context.Context) (bool, error) {
	fence, err := s.getOne(ctx, s.keys.Fence())
	if err != nil {
		return false, fmt.Errorf("read the fence of the access records: %w", err)
	}

	return fence != nil, nil
}

// makeCluster writes the watermarks and then, in one transaction, the record of the cluster, the
// fence and the first access records, unless the cluster's record exists by now. The record comes
// last, so that a cluster with a record has all its watermarks: a shard without one counts as
// damaged. A watermark that exists is not replaced, because a replaced one would let ticks be
// decided again (G3).
func (s Cluster) makeCluster(ctx context.Context, c task.Cluster, first FirstAccess, now time.Time) error {
	none := isAbsent(s.keys.Cluster())
	const chunk = 60 // etcd allows 128 operations, including nested ones
	for first := 0; first < c.Shards; first += chunk {
		t := kv.Txn{If: []clientv3.Cmp{none}}
		for id := first; id < min(first+chunk, c.Shards); id++ {
			key := s.keys.Watermark(id)
			zero := record.Encode(record.Watermark{Time: task.At(time.UnixMilli(0)), Nonce: task.NewUID()})
			t.Then = append(t.Then, clientv3.OpTxn([]clientv3.Cmp{isAbsent(key)}, []clientv3.Op{clientv3.OpPut(key, zero)}, nil))
		}

		if _, err := s.writeAlone(ctx, t); err != nil {
			return err
		}
	}

	t := kv.Txn{If: []clientv3.Cmp{none}, Then: []clientv3.Op{
		clientv3.OpPut(s.keys.Cluster(), record.Encode(c)),
		clientv3.OpPut(s.keys.Fence(), record.Encode(record.Fence{Writes: []record.FenceWrite{{At: task.At(now)}}})),
		s.putTokenChanges(),
	}}
	for _, n := range first.Namespaces {
		t.Then = append(t.Then, clientv3.OpPut(s.keys.Namespace(n.Name), record.Encode(n)))
	}
	for _, b := range first.Bindings {
		t.Then = append(t.Then, clientv3.OpPut(s.keys.Binding(b.Name), record.Encode(b)))
	}
	for _, token := range first.Tokens {
		t.Then = append(t.Then, clientv3.OpPut(s.keys.Token(token.ID), record.Encode(token)))
	}

	_, err := s.writeAlone(ctx, t)

	return err
}

// NewestFormat is the newest format of records that this version understands. There is one
// format so far.
//
// The record of the cluster contains the format in force. No node writes records that require a
// newer format, and no node joins that does not understand the format in force. So different
// versions can run side by side, and a cluster can be upgraded node by node.
//
// A new format is needed when this version would misread a record. A field that this version
// may ignore needs no new format, because its writes preserve fields that it does not know. To
// add a format:
//
//   - Increase NewestFormat, read the records of both formats, and write those of the newer one
//     only when Store.Format returns it.
//   - Until then, make the API refuse what only the newer format can record.
//   - Make Formats.WaitsFor report records in the newer format, so that a downgrade waits until
//     an older version has nothing to misread.
//
// A decision must not depend on the format in force: the content of a commit follows from the
// decision alone.
const NewestFormat = 1

// ErrFormat means that the cluster's records have a format that this version, or
// another one in the cluster, does not understand.
var ErrFormat = errors.New("format of records")

// formats contains the formats that a store understands and writes. It is safe for concurrent
// use.
type formats struct {
	understood int          // the newest format that is read
	writes     atomic.Int32 // the format that is written
	cluster    atomic.Int64 // mod revision of the cluster record from which writes was taken; 0: none
}

// inUse returns the format that is written.
func (f *formats) inUse() int { return int(f.writes.Load()) }

// Understanding returns the same Store as a version of Carillon that understands formats up to
// newest. It shares the format in use with the Stores that its Batching returns. Tests emulate
// the next version with NewestFormat + 1.
func (s *Store) Understanding(newest int) *Store {
	u := *s.conn
	u.format = &formats{understood: newest}
	u.format.writes.Store(int32(newest))

	return newOverConn(&u)
}

// Understands returns the newest format that the store reads.
func (s Cluster) Understands() int { return s.format.understood }

// Format returns the format that the store writes. Until Bootstrap or Obey is called, it is the
// newest.
func (s Cluster) Format() int { return s.format.inUse() }

// Obey adopts the format of the cluster's record, unless a later record is known. It returns
// ErrFormat if other nodes may write records that this version does not understand.
func (s Cluster) Obey(c ClusterRecord) error {
	if c.Mod < s.format.cluster.Load() {
		return nil
	}
	return s.obeyRecord(c)
}

// obeyRecord is Obey without the check for a later record. A join needs it: if etcd was restored,
// the record that the join has just read may be older than the one that the node knew.
func (s Cluster) obeyRecord(c ClusterRecord) error {
	if f := c.InForce(); f > s.format.understood {
		return fmt.Errorf("%w: the cluster's records have format %d, but this version understands only formats up to %d: "+
			"run a newer version, or use one to run `carillon cluster downgrade --to-format %d`", ErrFormat, f, s.format.understood, s.format.understood)
	}

	s.format.writes.Store(int32(c.Written()))
	s.format.cluster.Store(c.Mod)

	return nil
}

// Present is the present record of the cluster.
type Present struct {
	Cluster task.Cluster
	Found   bool // the record exists
	// Mod is the mod revision of the record, and Revision that of the whole store. The latter
	// never decreases, unless etcd is restored from an older snapshot.
	Mod, Revision int64

	raw []byte // the value
}

// Present reads the record of the cluster and the revision of the store.
func (s Cluster) Present(ctx context.Context) (p Present, err error) {
	res, err := s.readKey(ctx, s.keys.Cluster())
	if err != nil {
		return p, fmt.Errorf("read the cluster's record: %w", err)
	}

	p.Revision = res.Header.Revision

	if len(res.Kvs) == 0 {
		return p, nil
	}

	p.Found, p.Mod = true, res.Kvs[0].ModRevision
	p.raw = res.Kvs[0].Value
	p.Cluster, err = record.Decode[task.Cluster](p.raw)

	return p, err
}

// Record returns the record for ChangeCluster and Register. If there is none, its mod revision is 0.
func (p Present) Record() ClusterRecord {
	return ClusterRecord{Cluster: p.Cluster, Mod: p.Mod, raw: p.raw}
}

// BeginEpoch begins the next epoch of the cluster, which accepts the present content of etcd after a restore: all nodes of a lower
// epoch start over with it. r says who has restored it and when; BeginEpoch sets its other fields. It also deletes what was sent to
// receivers of alerts, because nobody knows what they were sent after the snapshot: all that is open is sent again. It returns
// task.ErrConflict if the record has changed since p was read. After task.ErrUnknown, the epoch in the record shows whether the write was
// applied.
func (s Cluster) BeginEpoch(ctx context.Context, p Present, r task.Restored) (task.Cluster, error) {
	r.ID, r.FromEpoch, r.Epoch, r.Revision = task.NewUID(), p.Cluster.Epoch, task.NextEpoch(p.Cluster.Epoch, r.At.Time), p.Revision
	c := p.Cluster.WithRestore(r)

	sent := s.keys.SentAlerts()
	if err := s.changeCluster(ctx, p.Record(), c, nil, clientv3.OpDelete(sent, withPrefix(sent))); err != nil {
		return p.Cluster, fmt.Errorf("begin epoch %d of the cluster: %w", c.Epoch, err)
	}

	return c, nil
}

// Seen is a key and the state in which it was read.
type Seen struct {
	Key string
	Mod int64 // mod revision; 0: the key was absent
}

// MostMended is how many keys one call of DeleteSeen may have, including those that it only
// compares: half of what etcd allows in a transaction.
const MostMended = 64

// DeleteSeen deletes the keys gone, in one transaction, if they and the keys beside are as they
// were read. Otherwise it returns task.ErrConflict and deletes nothing. It is for records that
// no component manages any more, not for records of a shard with an owner.
func (s Cluster) DeleteSeen(ctx context.Context, gone []Seen, beside ...Seen) error {
	var t kv.Txn
	for _, k := range gone {
		if k.Mod == 0 {
			return fmt.Errorf("delete %s: %w: it did not exist", k.Key, task.ErrConflict)
		}
		t.If = append(t.If, isUnchanged(k.Key, k.Mod))
		t.Then = append(t.Then, clientv3.OpDelete(k.Key))
	}

	for _, k := range beside {
		t.If = append(t.If, isUnchanged(k.Key, k.Mod))
	}

	res, err := s.writeAlone(ctx, t)
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("delete records (%d): %w", len(gone), err)
	}

	return nil
}
