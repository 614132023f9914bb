package record

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// DecodeNode decodes the record of a node. If that fails, it returns the name and the revision
// with the error.
func DecodeNode(keys Keys, e *mvccpb.KeyValue) (task.Node, error) {
	n, err := Decode[task.Node](e.Value)
	n.Name, n.Revision = string(e.Key)[len(keys.Nodes()):], e.CreateRevision
	return n, err
}

// DecodeNodes decodes the keys below nodes/. It omits records that cannot be read, so such a
// node gets neither shards nor runs.
func DecodeNodes(keys Keys, all []*mvccpb.KeyValue) []task.Node {
	nodes := make([]task.Node, 0, len(all))
	for _, e := range all {
		if n, err := DecodeNode(keys, e); err == nil {
			nodes = append(nodes, n)
		}
	}

	return nodes
}
