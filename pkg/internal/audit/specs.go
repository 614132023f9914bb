package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// specSet records which tasks have a spec, with which uid, and which of them have an entry. It uses 17 bytes for
// each task. Two names with the same hash hide each other. Among a million tasks the probability of this is one in
// thirty million.
type specSet struct {
	specs    []specHash // ordered by the hash of the name after sortSpecs
	hasEntry []bool     // by index of specs
}

// specHash is a spec, as hashes of its name and its uid.
type specHash struct{ name, uid uint64 }

// hashOf returns the hash of a task's name.
func hashOf(ref record.Ref) uint64 { return xxhash.Sum64String(ref.String()) }

// addSpec adds a spec. Call sortSpecs before any lookup.
func (s *specSet) addSpec(ref record.Ref, uid string) {
	s.specs = append(s.specs, specHash{hashOf(ref), xxhash.Sum64String(uid)})
}

// sortSpecs orders the specs for binary search.
func (s *specSet) sortSpecs() {
	slices.SortFunc(s.specs, func(a, b specHash) int { return cmp.Compare(a.name, b.name) })
	s.hasEntry = make([]bool, len(s.specs))
}

// findSpec returns the index of a task's spec, or false if it has none.
func (s *specSet) findSpec(ref record.Ref) (int, bool) {
	return slices.BinarySearchFunc(s.specs, hashOf(ref), func(a specHash, b uint64) int { return cmp.Compare(a.name, b) })
}

// mayBe reports whether a task's spec has this uid, or has a uid that cannot be read.
func (s *specSet) mayBe(ref record.Ref, uid string) bool {
	i, ok := s.findSpec(ref)
	return ok && (s.specs[i].uid == xxhash.Sum64String(uid) || s.specs[i].uid == xxhash.Sum64String(""))
}

// specJudge judges the specs of the tasks.
type specJudge struct{ judge }

// readSpecs reads all specs, and records which tasks have one.
func (j *specJudge) readSpecs(ctx context.Context) error {
	err := j.reader.eachRecord(ctx, j.keys.Specs(), func(_ context.Context, e *mvccpb.KeyValue) error {
		namespace, name, ok := j.keys.ParseSpec(string(e.Key))
		if !ok {
			j.suspectUnknownKey(e)
			return nil
		}

		j.checkNoLease(e)
		j.cluster.changes.addSpec(e)

		uid, err := specUID(e.Value)
		if err != nil {
			j.suspectUnreadable(e, fmt.Sprintf("the spec of %s/%s", namespace, name), err)
		}

		j.cluster.specs.addSpec(j.ref(namespace, name), uid)

		return nil
	})

	j.cluster.specs.sortSpecs()

	return err
}

// specUID returns the uid in a spec.
func specUID(value []byte) (string, error) {
	var t struct {
		UID string `json:"uid"`
	}
	err := json.Unmarshal(value, &t)
	return t.UID, err
}

// checkAllHaveEntries suspects the specs for which no shard has an entry. It reads the specs again to get their
// names, because the set contains only hashes.
func (j *specJudge) checkAllHaveEntries(ctx context.Context) error {
	specs := &j.cluster.specs
	if !slices.Contains(specs.hasEntry, false) {
		return nil
	}

	return j.reader.eachRecord(ctx, j.keys.Specs(), func(_ context.Context, e *mvccpb.KeyValue) error {
		namespace, name, ok := j.keys.ParseSpec(string(e.Key))
		ref := j.ref(namespace, name)
		if i, found := specs.findSpec(ref); !ok || !found || specs.hasEntry[i] {
			return nil
		}

		j.addSuspect(kindNoEntry.newFinding(fmt.Sprintf("task %s has a spec but no entry", ref), string(e.Key), j.keys.Entry(ref)),
			seenRecord(e), store.Seen{Key: j.keys.Entry(ref)})

		return nil
	})
}
