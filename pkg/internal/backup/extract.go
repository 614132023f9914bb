package backup

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// EachTask calls f with the tasks of a namespace, or of all if it is empty, those that were changed last first. unreadable is called with the name of a task whose
// record cannot be decoded. An error of either ends EachTask.
func (d *Database) EachTask(ctx context.Context, prefix, namespace string, f func(task.Task) error, unreadable func(namespace, name string, err error) error) error {
	keys, err := record.NewKeys(prefix)
	if err != nil {
		return err
	}

	within := keys.Specs()
	if namespace != "" {
		within = keys.SpecsOf(namespace)
	}

	return d.Each(ctx, within, func(kv *mvccpb.KeyValue) error {
		namespace, name, ok := keys.ParseSpec(string(kv.GetKey()))
		if !ok {
			return nil
		}

		t, err := record.DecodeTask(kv.GetValue(), kv.GetModRevision())
		if err != nil {
			return unreadable(namespace, name, err)
		}
		t.Namespace, t.Name = namespace, name

		return f(t)
	})
}

// HasCluster reports whether a database contains the record of a cluster below a prefix.
func (d *Database) HasCluster(ctx context.Context, prefix string) (found bool, err error) {
	keys, err := record.NewKeys(prefix)
	if err != nil {
		return false, err
	}

	err = d.Each(ctx, keys.Cluster(), func(kv *mvccpb.KeyValue) error {
		found = found || string(kv.GetKey()) == keys.Cluster()
		return nil
	})

	return found, err
}
