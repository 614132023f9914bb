package record

import (
	"bytes"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// KnownNodes reads snapshots of nodes/ as DecodeNodes does, and each record only
// once: every node rewrites its own every 5 s, and of a thousand nodes the others are
// as they were. What it returns shares labels, roles and facts, and is not to be
// changed.
type KnownNodes struct {
	keys Keys

	mu    sync.Mutex
	known []knownNode // in the order of their keys
}

type knownNode struct {
	record *mvccpb.KeyValue
	node   task.Node
	err    error
}

// NewKnownNodes makes one that knows nothing yet.
func NewKnownNodes(keys Keys) *KnownNodes { return &KnownNodes{keys: keys} }

// Decode reads a snapshot, which is sorted by key.
func (k *KnownNodes) Decode(all []*mvccpb.KeyValue) []task.Node {
	k.mu.Lock()
	defer k.mu.Unlock()

	before, now := k.known, make([]knownNode, 0, len(all))
	nodes := make([]task.Node, 0, len(all))
	for _, e := range all {
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
