package record

import (
	"bytes"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// KnownNodes decodes snapshots of nodes/ like DecodeNodes, but decodes each record only once.
// Every node rewrites its own record every 5 s, so of a thousand nodes most are unchanged since
// the previous snapshot. The results share labels, roles and facts, and must not be modified.
// KnownNodes is safe for concurrent use.
type KnownNodes struct {
	keys Keys

	mu    sync.Mutex
	known []knownNode // from the last snapshot, in the order of the keys
}

// knownNode is a record and its decoded form, or the error of its decoding.
type knownNode struct {
	record *mvccpb.KeyValue
	node   task.Node
	err    error
}

// NewKnownNodes returns a KnownNodes without records.
func NewKnownNodes(keys Keys) *KnownNodes { return &KnownNodes{keys: keys} }

// Decode decodes a snapshot, which must be sorted by key. It omits records that cannot be read.
func (k *KnownNodes) Decode(all []*mvccpb.KeyValue) []task.Node {
	k.mu.Lock()
	defer k.mu.Unlock()

	before, now := k.known, make([]knownNode, 0, len(all))
	nodes := make([]task.Node, 0, len(all))
	for _, e := range all {
		// Both lists are sorted, so records of nodes that are gone are skipped here.
		for len(before) > 0 && bytes.Compare(before[0].record.Key, e.Key) < 0 {
			before = before[1:]
		}

		if len(before) > 0 && bytes.Equal(before[0].record.Key, e.Key) && before[0].record.ModRevision == e.ModRevision {
			now = append(now, before[0])
		} else {
			n, err := DecodeNode(k.keys, e)
			now = append(now, knownNode{e, n, err})
		}

		if last := &now[len(now)-1]; last.err == nil {
			nodes = append(nodes, last.node)
		}
	}

	k.known = now

	return nodes
}
