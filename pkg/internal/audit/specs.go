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

// specSet says which tasks have a spec, with which uid, and which of them an entry. It
// keeps 17 bytes for each. Two names with one hash hide each other: among a million
// tasks, with a chance of one in thirty million.
type specSet struct {
	specs    []specHash // in the order of their names, once sorted
	hasEntry []bool
}

type specHash struct{ name, uid uint64 }

func hashOf(ref record.Ref) uint64 { return xxhash.Sum64String(ref.String()) }

func (s *specSet) addSpec(ref record.Ref, uid string) {
	s.specs = append(s.specs, specHash{hashOf(ref), xxhash.Sum64String(uid)})
}

func (s *specSet) sortSpecs() {
	slices.SortFunc(s.specs, func(a, b specHash) int { return cmp.Compare(a.name, b.name) })
	s.hasEntry = make([]bool, len(s.specs))
}

// findSpec returns the place of a task's spec; false if it has none.
func (s *specSet) findSpec(ref record.Ref) (int, bool) {
	return slices.BinarySearchFunc(s.specs, hashOf(ref), func(a specHash, b uint64) int { return cmp.Compare(a.name, b) })
}

// mayBe reports whether a task's spec has this uid, or cannot be read.
func (s *specSet) mayBe(ref record.Ref, uid string) bool {
	i, ok := s.findSpec(ref)
	return ok && (s.specs[i].uid == xxhash.Sum64String(uid) || s.specs[i].uid == xxhash.Sum64String(""))
}

// specJudge judges the specs of the tasks.
type specJudge struct{ judge }

// readSpecs reads all specs, and remembers which tasks have one.
func (j *specJudge) readSpecs(ctx context.Context) error {
	err := j.reader.eachRecord(ctx, j.keys.Specs(), func(_ context.Context, e *mvccpb.KeyValue) error {
		namespace, name, ok := j.keys.ParseSpec(string(e.Key))
		if !ok {
			j.suspectStrange(e)
			return nil
		}

		j.checkNoLease(e)

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

// checkAllHaveEntries suspects the specs for which no shard had an entry. It reads the
// specs once more for their names: only hashes were kept.
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

		j.addSuspect(kindNoEntry.newFinding(fmt.Sprintf("task %s has a spec and no entry", ref), string(e.Key), j.keys.Entry(ref)),
			seenRecord(e), store.Seen{Key: j.keys.Entry(ref)})

		return nil
	})
}
