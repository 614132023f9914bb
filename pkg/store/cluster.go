package store

import (
	"context"
	"fmt"
	"reflect"
	"strings"
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
	value := record.KeepUnknownFields(old.raw, record.Encode(c), reflect.TypeFor[task.Cluster]())
	res, err := s.writeAlone(ctx, kv.Txn{
		If:   append([]clientv3.Cmp{isUnchanged(s.keys.Cluster(), old.Mod)}, more...),
		Then: []clientv3.Op{clientv3.OpPut(s.keys.Cluster(), value)},
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

// newCluster returns the record of a new cluster.
func (s Cluster) newCluster(shards int, now time.Time) task.Cluster {
	return task.Cluster{ID: task.NewUID(), Shards: shards, Schema: 1, Epoch: 1, Format: s.format.understood, CreatedAt: task.At(now)}
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
