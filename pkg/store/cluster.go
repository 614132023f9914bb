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
	"github.com/carillonhq/carillon/pkg/task"
)

// ClusterRecord is the cluster's record as it was read.
type ClusterRecord struct {
	task.Cluster
	Mod int64 // mod revision of its key
	raw []byte
}

// DecodeCluster reads the cluster's record.
func DecodeCluster(e *mvccpb.KeyValue) (ClusterRecord, error) {
	c, err := decode[task.Cluster](e.Value)
	return ClusterRecord{Cluster: c, Mod: e.ModRevision, raw: e.Value}, err
}

// Cluster reads the cluster's record. task.ErrNotFound if there is none.
func (s *Store) Cluster(ctx context.Context) (ClusterRecord, error) {
	e, err := s.getOne(ctx, s.keys.Cluster())
	if err == nil && e == nil {
		err = task.ErrNotFound
	}
	if err != nil {
		return ClusterRecord{}, fmt.Errorf("read the cluster's record: %w", err)
	}
	return DecodeCluster(e)
}

// ChangeCluster writes the cluster's record over what was read as old, if that
// is still there and more holds; fields that this version does not know stay.
// task.ErrConflict if not.
func (s *Store) ChangeCluster(ctx context.Context, old ClusterRecord, c task.Cluster, more ...clientv3.Cmp) error {
	value := graft(old.raw, encode(c), reflect.TypeFor[task.Cluster]())
	res, err := s.writeAlone(ctx, kv.Txn{
		If:   append([]clientv3.Cmp{unchanged(s.keys.Cluster(), old.Mod)}, more...),
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

// Formats are the cluster's record and the nodes that are present, at one
// revision: what the next format follows from.
type Formats struct {
	Cluster  ClusterRecord
	Nodes    []task.Node
	Revision int64
}

// Formats reads them.
func (s *Store) Formats(ctx context.Context) (Formats, error) {
	nodes := s.keys.Nodes()
	res, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(s.keys.Cluster()), clientv3.OpGet(nodes, below(nodes))).Commit()
	if err != nil {
		return Formats{}, fmt.Errorf("read the cluster's record and its nodes: %w: %w", task.ErrUnavailable, err)
	}
	e := readAt(kv.Result{Responses: res.Responses}, 0)
	if e == nil {
		return Formats{}, fmt.Errorf("the cluster's record: %w", task.ErrNotFound)
	}
	f := Formats{Nodes: s.DecodeNodes(res.Responses[1].GetResponseRange().Kvs), Revision: res.Header.Revision}
	f.Cluster, err = DecodeCluster(e)
	return f, err
}

// Possible is the newest format that all nodes understand, and who keeps it
// there: those that understand no more.
func (f Formats) Possible() (format int, because []task.Node) {
	for _, n := range f.Nodes {
		switch u := n.Understands(); {
		case format == 0 || u < format:
			format, because = u, []task.Node{n}
		case u == format:
			because = append(because, n)
		}
	}
	return max(format, FormatExplicit), because
}

// StillWrite are the nodes that may still write a newer format than this.
func (f Formats) StillWrite(format int) (names []string) {
	for _, n := range f.Nodes {
		if n.Writes > format {
			names = append(names, n.Name)
		}
	}
	return names
}

// SetFormat puts a format in force, and changes what is wanted, if nothing has
// changed since f was read: neither the record, nor has a node joined.
// task.ErrConflict if it has.
func (s *Store) SetFormat(ctx context.Context, f Formats, format, wanted int) error {
	c := f.Cluster.Cluster
	c.Format, c.FormatWanted = format, wanted
	joined := clientv3.Compare(clientv3.CreateRevision(s.keys.Nodes()), "<", f.Revision+1).WithPrefix()
	return s.ChangeCluster(ctx, f.Cluster, c, joined)
}

// compactRecords counts the attempts in inboxes, and the waiting runs, whose
// records it takes FormatCompact to understand.
func (s *Store) compactRecords(ctx context.Context, shards int) (int, error) {
	all, _, err := s.getAll(ctx, s.keys.Runs())
	if err != nil {
		return 0, fmt.Errorf("look for records of format %d: %w", FormatCompact, err)
	}
	n := 0
	for _, e := range all {
		if compact(e.Value) {
			n++
		}
	}
	for shard := range shards {
		if all, _, err = s.getAll(ctx, s.keys.Queue(shard)); err != nil {
			return 0, fmt.Errorf("look for records of format %d: %w", FormatCompact, err)
		}
		for _, e := range all {
			if w, err := decodeWaiting(e.Value); err == nil && hasBeen(&w.Run) && !strings.Contains(string(e.Value), `"dispatched_at"`) {
				n++
			}
		}
	}
	return n, nil
}

// needing says which task takes a newer format than this; "" if none does.
func (s *Store) needing(ctx context.Context, format int) (string, error) {
	const page = 500
	for after := ""; ; {
		tasks, next, err := s.Tasks(ctx, "", after, page)
		if err != nil {
			return "", fmt.Errorf("look for tasks of a newer format than %d: %w", format, err)
		}
		for _, t := range tasks {
			if needs, _ := FormatOf(&t.Spec); t.UID != "" && needs > format { // else it cannot be read, by any version
				return fmt.Sprintf("tasks that take format %d, such as %s/%s: carillon task update --unset, or delete them", needs, t.Namespace, t.Name), nil
			}
		}
		if after = next; after == "" {
			return "", nil
		}
	}
}

// refresh obeys the cluster's record as it is now: of an etcd that was restored,
// an earlier one than is known.
func (s *Store) refresh(ctx context.Context) error {
	c, err := s.Cluster(ctx)
	if err != nil {
		return err
	}
	return s.obey(c)
}

// newCluster is the record of a cluster that is made now.
func (s *Store) newCluster(shards int, now time.Time) task.Cluster {
	return task.Cluster{ID: task.NewUID(), Shards: shards, Schema: 1, Epoch: 1, Format: s.format.understood, CreatedAt: task.At(now)}
}

// WaitsFor says what is in the way of the older format that is wanted; "" if
// nothing is, or none is wanted.
func (s *Store) WaitsFor(ctx context.Context, f Formats) (string, error) {
	if f.Cluster.Written() >= f.Cluster.InForce() {
		return "", nil
	}
	if names := f.StillWrite(f.Cluster.Written()); len(names) > 0 {
		return fmt.Sprintf("nodes that have not heard of it: %s", strings.Join(names, ", ")), nil
	}
	if what, err := s.needing(ctx, f.Cluster.Written()); err != nil || what != "" {
		return what, err
	}
	if f.Cluster.Written() < FormatPolicies {
		z, err := s.Freezes(ctx)
		if err != nil {
			return "", err
		}
		if n := len(z.Holding); n > 0 {
			return fmt.Sprintf("%d freezes, which older versions take no notice of: `carillon cluster unfreeze`", n), nil
		}
	}
	if f.Cluster.Written() >= FormatCompact {
		return "", nil
	}
	left, err := s.compactRecords(ctx, f.Cluster.Shards)
	if left > 0 {
		return fmt.Sprintf("%d runs, waiting or active, with records of format %d", left, FormatCompact), nil
	}
	return "", err
}
