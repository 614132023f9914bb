package kv

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Fence is a key and a revision that must still hold when a write commits. Exactly one of the revisions is set: a mod
// fence ends with any change of the key, a create fence ends when the key is deleted, even if it is created again.
type Fence struct {
	Key            string
	ModRevision    int64
	CreateRevision int64
}

// ModFence holds while the key is unchanged since rev.
func ModFence(key string, rev int64) Fence { return Fence{Key: key, ModRevision: rev} }

// CreateFence holds while the key that was created at rev lives.
func CreateFence(key string, rev int64) Fence { return Fence{Key: key, CreateRevision: rev} }

// Compare is the comparison to put into the transaction that the fence guards. A fence without a revision holds never:
// the zero value must not mean "the key is absent".
func (f Fence) Compare() clientv3.Cmp {
	switch {
	case f.ModRevision > 0 && f.CreateRevision == 0:
		return ModIs(f.Key, f.ModRevision)
	case f.CreateRevision > 0 && f.ModRevision == 0:
		return CreateIs(f.Key, f.CreateRevision)
	}

	return clientv3.Compare(clientv3.CreateRevision(f.Key), "<", 0)
}

// Holds says whether the fence held when kv was read; nil stands for an absent key. A fence holds for its own key only.
// It is a hint: only Compare, in the write itself, decides.
func (f Fence) Holds(kv *mvccpb.KeyValue) bool {
	if kv == nil || string(kv.Key) != f.Key {
		return false
	}

	switch {
	case f.ModRevision > 0 && f.CreateRevision == 0:
		return kv.ModRevision == f.ModRevision
	case f.CreateRevision > 0 && f.ModRevision == 0:
		return kv.CreateRevision == f.CreateRevision
	}

	return false
}

// ModIs is the comparison that holds if a key's mod revision is rev: 0 if it is absent. A commit has a hundred of them,
// and clientv3.Compare copies each by reflection.
func ModIs(key string, rev int64) clientv3.Cmp {
	var c clientv3.Cmp
	p := c.GetCompare()
	p.Key, p.Target, p.TargetUnion = []byte(key), pb.Compare_MOD, &pb.Compare_ModRevision{ModRevision: rev}

	return c
}

// CreateIs is ModIs with the create revision.
func CreateIs(key string, rev int64) clientv3.Cmp {
	var c clientv3.Cmp
	p := c.GetCompare()
	p.Key, p.Target, p.TargetUnion = []byte(key), pb.Compare_CREATE, &pb.Compare_CreateRevision{CreateRevision: rev}

	return c
}
