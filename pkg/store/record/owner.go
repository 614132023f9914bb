package record

import (
	"reflect"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

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
