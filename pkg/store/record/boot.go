package record

import (
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// Boot is the last boot of a node, and which of the tasks that run at boot have their run for it.
type Boot struct {
	BootID   string    `json:"boot_id"`
	BootedAt task.Time `json:"booted_at,omitzero"` // as the node announced it
	At       task.Time `json:"at"`                 // when the leader found the boot
	// Registered is the create revision of the node's key when the leader found the boot. Tasks that do not run at boot since
	// before that have no run for it.
	Registered int64 `json:"registered"`
	// After is the last task, as namespace/name, up to which all have their run. With Done, all tasks have it.
	After string `json:"after,omitempty"`
	Done  bool   `json:"done,omitempty"`
	// Seen is when the node was present, to a day.
	Seen task.Time `json:"seen"`

	Node string `json:"-"`
	Mod  int64  `json:"-"` // mod revision of the key; 0: the key is absent
}

// DecodeBoot decodes the boot of a node. Of a record that cannot be read, only the node and the revision are returned.
func DecodeBoot(keys Keys, e *mvccpb.KeyValue) (Boot, error) {
	b, err := Decode[Boot](e.Value)
	if err != nil {
		b = Boot{}
	}
	b.Node, b.Mod = strings.TrimPrefix(string(e.Key), keys.NodeBoots()), e.ModRevision

	return b, err
}
