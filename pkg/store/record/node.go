package record

import (
	"bytes"
	"reflect"
	"sync"

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

// Owner is the record of the node that may write to a shard.
type Owner struct {
	Node     string            `json:"node"`
	Since    task.Time         `json:"since"`
	Term     int64             `json:"term"`               // the term of the leader that wrote the record
	Previous []task.Assignment `json:"previous,omitempty"` // former owners, the latest first

	Shard int   `json:"-"`
	Fence int64 `json:"-"` // mod revision of the key

	raw []byte // the value as it was read
}

// DecodeOwners decodes the keys below owners/. A record that cannot be read has no node, so
// that the leader assigns its shard again.
func DecodeOwners(keys Keys, all []*mvccpb.KeyValue) []Owner {
	owners := make([]Owner, 0, len(all))
	for _, e := range all {
		shard, ok := keys.ParseOwner(string(e.Key))
		if !ok {
			continue
		}

		o, err := Decode[Owner](e.Value)
		if err != nil {
			o = Owner{}
		}

		o.Shard, o.Fence, o.raw = shard, e.ModRevision, e.Value
		owners = append(owners, o)
	}

	return owners
}

// Handover is the record of a handover. It names the node that loads a shard before it becomes
// the owner. The leader writes it, the node answers in it, and the transaction that moves the
// shard deletes it.
type Handover struct {
	To    string    `json:"to"`
	Since task.Time `json:"since"` // by the leader's clock; for display
	// Ready is the session in which the node To has loaded the shard, as the create revision of
	// its node key. 0 means not yet. If the node has another session now, the answer is void,
	// because the node may have lost what it had loaded.
	Ready int64 `json:"ready,omitempty"`

	Shard    int   `json:"-"`
	Revision int64 `json:"-"` // mod revision of the key; 0: the key is absent
}

// DecodeHandovers decodes the keys below moves/. A record that cannot be read names no node.
func DecodeHandovers(keys Keys, all []*mvccpb.KeyValue) []Handover {
	list := make([]Handover, 0, len(all))
	for _, e := range all {
		shard, ok := keys.ParseHandover(string(e.Key))
		if !ok {
			continue
		}

		h, err := Decode[Handover](e.Value)
		if err != nil {
			h = Handover{}
		}

		h.Shard, h.Revision = shard, e.ModRevision
		list = append(list, h)
	}

	return list
}

// EncodeOver encodes o as a replacement of old. Fields of old that this version does not know
// are preserved.
func (o Owner) EncodeOver(old Owner) string {
	return KeepUnknownFields(old.raw, Encode(o), reflect.TypeFor[Owner]())
}
