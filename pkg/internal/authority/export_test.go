package authority

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// ErrNotProven is the error of ProveNow if the view lacks a change.
var ErrNotProven = errNotProven

// NewAt returns a Keeper whose view is made of some records, and never changes.
func NewAt(client *kv.Client, keys record.Keys, records []*mvccpb.KeyValue) *Keeper {
	k := New(client, keys, nil)
	k.setView(k.CompileView(kv.Snapshot{KVs: records, Revision: 1}))

	return k
}

// CompileView compiles all records.
func (k *Keeper) CompileView(s kv.Snapshot) *View { return k.compileView(s) }

// UpdateView applies what differs from an earlier view.
func (k *Keeper) UpdateView(v *View, s kv.Snapshot) *View { return k.updateView(v, s) }

// ProveNow compares the view with etcd once.
func (k *Keeper) ProveNow(ctx context.Context) error { return k.proveCurrent(ctx) }
