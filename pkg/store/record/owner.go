package record

import (
	"reflect"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// Owner is who may write a shard.
type Owner struct {
	Node     string            `json:"node"`
	Since    task.Time         `json:"since"`
	Term     int64             `json:"term"` // of the leader that wrote it
	Previous []task.Assignment `json:"previous,omitempty"`

	Shard int   `json:"-"`
	Fence int64 `json:"-"` // mod revision of the key

	raw []byte // as it was read
}

// DecodeOwners reads a snapshot of owners/. A record that cannot be read has no
// node: its shard is assigned anew.
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

// Handover names the node that is to load a shard before it owns it. The leader
// writes it, the node answers in it, and it goes with the move.
type Handover struct {
	To    string    `json:"to"`
	Since task.Time `json:"since"` // by the leader's clock; for display
	// Ready is the session of To, as the create revision of its node key, under
	// which it has said that it has loaded the shard; 0: not yet. Of another
	// session it says nothing: what that had loaded is gone, maybe.
	Ready int64 `json:"ready,omitempty"`

	Shard    int   `json:"-"`
	Revision int64 `json:"-"` // mod revision of the key; 0: it is not there
}

// DecodeHandovers reads a snapshot of moves/. A record that cannot be read names
// nobody.
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

// EncodeOver encodes o as it is written over old: fields of old that this version
// does not know stay.
func (o Owner) EncodeOver(old Owner) string {
	return KeepUnknownFields(old.raw, Encode(o), reflect.TypeFor[Owner]())
}
