package record

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// Tombstone records the deletion of a task. It exists until a task of the same name is created,
// or until the leader removes it a week later.
type Tombstone struct {
	UID        string    `json:"uid,omitempty"`
	Generation int64     `json:"generation,omitempty"`
	DeletedAt  task.Time `json:"deleted_at"`
	DeletedBy  string    `json:"deleted_by,omitempty"`
	Why        string    `json:"why,omitempty"` // a description, if the task was not deleted by a user
}

// DecodeTombstone decodes a tombstone. It returns nil if e is nil.
func DecodeTombstone(e *mvccpb.KeyValue) (*Tombstone, error) {
	if e == nil {
		return nil, nil
	}
	t, err := Decode[Tombstone](e.Value)
	return &t, err
}
