package record

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// Tombstone is what is remembered of a deleted task, until one of its name is
// created again, or a leader removes it.
type Tombstone struct {
	UID        string    `json:"uid,omitempty"`
	Generation int64     `json:"generation,omitempty"`
	DeletedAt  task.Time `json:"deleted_at"`
	DeletedBy  string    `json:"deleted_by,omitempty"`
	Why        string    `json:"why,omitempty"` // in words, if it was not a person
}

// DecodeTombstone reads a tombstone; nil if e is.
func DecodeTombstone(e *mvccpb.KeyValue) (*Tombstone, error) {
	if e == nil {
		return nil, nil
	}
	t, err := Decode[Tombstone](e.Value)
	return &t, err
}
