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

// Known decodes snapshots of a range, but decodes each record only once. Of a thousand nodes, each
// of which rewrites its own record every 5 s, and of a thousand shards, most are unchanged since the
// previous snapshot. The results share slices and maps, and must not be modified. Known is safe for
// concurrent use.
type Known[T any] struct {
	decode func(*mvccpb.KeyValue) (T, bool)

	mu    sync.Mutex
	known []knownRecord[T] // from the last snapshot, in the order of the keys
}

// knownRecord is a record and its decoded form. It is not ok if snapshots omit it.
type knownRecord[T any] struct {
	record *mvccpb.KeyValue
	value  T
	ok     bool
}

// NewKnownNodes returns what decodes snapshots of nodes/ as DecodeNodes does.
func NewKnownNodes(keys Keys) *Known[task.Node] {
	return &Known[task.Node]{decode: func(e *mvccpb.KeyValue) (task.Node, bool) {
		n, err := DecodeNode(keys, e)
		return n, err == nil
	}}
}

// NewKnownOwners returns what decodes snapshots of owners/ as DecodeOwners does.
func NewKnownOwners(keys Keys) *Known[Owner] {
	return &Known[Owner]{decode: func(e *mvccpb.KeyValue) (Owner, bool) { return decodeOwner(keys, e) }}
}

// Decode decodes a snapshot, which must be sorted by key. The caller may modify the slice, but not what is in its
// elements.
func (k *Known[T]) Decode(all []*mvccpb.KeyValue) []T {
	k.mu.Lock()
	defer k.mu.Unlock()

	before, now := k.known, make([]knownRecord[T], 0, len(all))
	values := make([]T, 0, len(all))
	for _, e := range all {
		// Both lists are sorted, so records that are gone are skipped here.
		for len(before) > 0 && bytes.Compare(before[0].record.Key, e.Key) < 0 {
			before = before[1:]
		}

		if len(before) > 0 && bytes.Equal(before[0].record.Key, e.Key) && before[0].record.ModRevision == e.ModRevision {
			now = append(now, before[0])
		} else {
			value, ok := k.decode(e)
			now = append(now, knownRecord[T]{e, value, ok})
		}

		if last := &now[len(now)-1]; last.ok {
			values = append(values, last.value)
		}
	}

	k.known = now

	return values
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
		if o, ok := decodeOwner(keys, e); ok {
			owners = append(owners, o)
		}
	}

	return owners
}

// decodeOwner decodes a key below owners/. It returns false if the key is not that of a shard.
func decodeOwner(keys Keys, e *mvccpb.KeyValue) (Owner, bool) {
	shard, ok := keys.ParseOwner(string(e.Key))
	if !ok {
		return Owner{}, false
	}

	o, err := Decode[Owner](e.Value)
	if err != nil {
		o = Owner{}
	}
	o.Shard, o.Fence, o.raw = shard, e.ModRevision, e.Value

	return o, true
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
