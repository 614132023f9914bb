package audit

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// mendable lists all damage that Repair repairs, with a change that must prevent the repair.
var mendable = []struct {
	name   string
	damage func(s *site)
	race   func(s *site)
	gone   int64
}{
	{"a waiting run of no task", func(s *site) { s.waiting(s.ref("two"), "u", task.ReasonManual, s.now) },
		func(s *site) { s.create(s.ref("two"), s.newEntry()) }, 1},
	{"a waiting run that is written anew", func(s *site) { s.waiting(s.ref("two"), "u", task.ReasonManual, s.now) },
		func(s *site) { s.touch(s.keys.Queue(s.ref("two").Shard)) }, 1},
	{"history of no task", func(s *site) {
		for n := range 150 {
			s.ended(s.ref("two"), "u", n, nil)
		}
	}, func(s *site) { e := s.newEntry(); e.UID = "u"; s.create(s.ref("two"), e) }, 150},
	{"history of no task, whose spec comes first", func(s *site) { s.ended(s.ref("two"), "u", 1, nil) },
		func(s *site) { s.put(s.keys.Spec(s.ref("two")), task.Task{UID: "u"}) }, 1},
	{"history of a former task", func(s *site) {
		s.ended(s.one, "before", 1, nil)
		s.ended(s.one, s.entry.UID, 2, nil)
	}, func(s *site) { s.entry.UID = "before"; s.put(s.keys.Entry(s.one), s.entry) }, 1},
	{"a ledger of no task", func(s *site) { s.chunk(s.ref("two"), "u", 1); s.chunk(s.ref("two"), "u", 2) },
		func(s *site) { e := s.newEntry(); e.UID = "u"; s.create(s.ref("two"), e) }, 2},
	{"a ledger of a former task", func(s *site) { s.chunk(s.one, "before", 1); s.chunk(s.one, s.entry.UID, 2) },
		func(s *site) { s.entry.UID = "before"; s.put(s.keys.Entry(s.one), s.entry) }, 1},
	{"a dead run of no task", func(s *site) {
		s.put(s.keys.DeadRun(s.ref("two"), "20261120T120000.000Z-abcd"), task.Run{UID: "u", State: task.Failed, Trigger: task.TriggerManual})
	}, func(s *site) { s.create(s.ref("two"), s.newEntry()) }, 1},
	{"data of a run that has ended", func(s *site) { s.flowData(s.one, s.oldRun()) },
		func(s *site) { s.flow(s.keys.DeadRun(s.one, s.oldRun()), task.Failed) }, 1},
	{"data that are written anew", func(s *site) { s.flowData(s.ref("two"), s.oldRun()) },
		func(s *site) { s.touch(s.keys.RunDataOf(s.ref("two"))) }, 1},
	{"data in another shard", func(s *site) {
		other := s.one
		other.Shard = (other.Shard + 1) % auditShards
		s.flowData(other, s.oldRun())
	}, func(s *site) { s.touch(s.keys.AllRunData()) }, 1},
	{"a former version of no task", func(s *site) { s.put(s.keys.Version(s.ref("two"), 1), task.Task{UID: "u"}) },
		func(s *site) { s.create(s.ref("two"), s.newEntry()) }, 1},
	{"a tombstone of a task that is there", func(s *site) { s.put(s.keys.Tombstone(s.one), record.Tombstone{UID: "u", DeletedAt: task.At(s.now)}) },
		func(s *site) { s.drop(s.keys.Spec(s.one)); s.drop(s.keys.Entry(s.one)) }, 1},
	{"a handover that remains", func(s *site) {
		s.put(s.keys.Root()+"moves/0001", map[string]any{"to": "b", "since": task.At(s.now.Add(-time.Hour))})
	}, func(s *site) {
		s.put(s.keys.Root()+"moves/0001", map[string]any{"to": "a", "since": task.At(s.now)})
	}, 1},
	{"a record of no dependent", func(s *site) { s.put(s.keys.Subscriber(s.one, "two"), record.Subscriber{UID: "u", Generation: 1}) },
		func(s *site) { s.create(s.ref("two"), s.newEntry()) }, 1},
	{"a record of an earlier dependent", func(s *site) {
		s.dependent("two", "one")
		s.put(s.keys.Subscriber(s.one, "two"), record.Subscriber{UID: "before", Generation: 9})
	}, func(s *site) { s.touch(s.keys.Entry(s.ref("two"))) }, 0},
	{"an instance cleared for ever", func(s *site) {
		s.put(s.keys.Cleared("x"), map[string]task.Time{"at": task.At(s.now.Add(-72 * time.Hour))})
	}, func(s *site) { s.put(s.keys.Cleared("x"), map[string]task.Time{"at": task.At(s.now)}) }, 1},
}

// touch rewrites the records below a prefix unchanged, so that their revisions change.
func (s *site) touch(prefix string) {
	s.Helper()

	for key, value := range s.all() {
		if strings.HasPrefix(key, prefix) {
			s.put(key, value)
		}
	}
}

func requestOf(f task.Finding) task.RepairRequest {
	return task.RepairRequest{Kind: f.Kind, Key: f.Keys[0], Revision: f.Revision}
}

func TestRepair_MendsWhatItSays(t *testing.T) {
	etcd := kvtest.Memory(t)

	for _, m := range mendable {
		t.Run(m.name, func(t *testing.T) {
			s := newSite(t, etcd)
			m.damage(s)
			before := s.all()

			found := s.audit()
			if len(found.Findings) != 1 || found.Findings[0].Repair == "" {
				t.Fatalf("found %+v", found.Findings)
			}

			res, err := s.auditor().Repair(s.ctx, requestOf(found.Findings[0]))
			if err != nil || res.Result != task.Repaired || res.Deleted != m.gone {
				t.Fatalf("%+v, %v", res, err)
			}

			if left := s.all(); len(before)-len(left) != int(m.gone) {
				t.Errorf("%d records are gone, want %d", len(before)-len(left), m.gone)
			}

			if again := s.audit(); len(again.Findings) > 0 {
				t.Errorf("after the repair: %+v", again.Findings)
			}

			if res, err := s.auditor().Repair(s.ctx, requestOf(found.Findings[0])); err != nil || res.Result != task.NotAsFound {
				t.Errorf("a second time: %+v, %v", res, err)
			}
		})
	}
}

// A repaired link is as the spec says, and new: it has a new revision.
func TestRepair_WritesAMissingLink(t *testing.T) {
	s := newSite(t, kvtest.Memory(t))
	s.dependent("two", "one")
	key := s.keys.Subscriber(s.one, "two")
	want := s.all()[key]
	s.drop(key)

	found := s.audit()
	if len(found.Findings) != 1 {
		t.Fatalf("found %+v", found.Findings)
	}
	if res, err := s.auditor().Repair(s.ctx, requestOf(found.Findings[0])); err != nil || res.Result != task.Repaired || res.Deleted != 0 {
		t.Fatalf("%+v, %v", res, err)
	}

	if got := s.all()[key]; got != want {
		t.Errorf("the record is %s, and was %s", got, want)
	}
	if again := s.audit(); len(again.Findings) > 0 {
		t.Errorf("after the repair: %+v", again.Findings)
	}
	if res, err := s.auditor().Repair(s.ctx, requestOf(found.Findings[0])); err != nil || res.Result != task.NotAsFound {
		t.Errorf("a second time: %+v, %v", res, err)
	}
}

// racing is a KV that calls a function just before a write reaches etcd.
type racing struct {
	kv.Committer
	race func()
}

func (r *racing) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	if race := r.race; race != nil {
		r.race = nil
		race()
	}
	return r.Committer.Commit(ctx, t)
}

// A change after the repair has read and before it writes fails a comparison, so nothing is deleted.
func TestRepair_IsDefeatedByAnyChange(t *testing.T) {
	etcd := kvtest.Memory(t)

	for _, m := range mendable {
		t.Run(m.name, func(t *testing.T) {
			s := newSite(t, etcd)
			m.damage(s)

			found := s.audit()
			if len(found.Findings) != 1 {
				t.Fatalf("found %+v", found.Findings)
			}

			var before map[string]string
			au := s.auditor()
			au.Store = store.New(etcd, &racing{kv.Direct(etcd), func() {
				m.race(s)
				before = s.all()
			}}, s.keys)

			res, err := au.Repair(s.ctx, requestOf(found.Findings[0]))
			if err != nil || res.Result != task.NotAsFound || res.Deleted != 0 {
				t.Errorf("%+v, %v", res, err)
			}

			if before == nil || !maps.Equal(before, s.all()) {
				t.Error("something was written")
			}
		})
	}
}

// A record that was rewritten between the audit and the repair is not the record that was found, even if its
// content is the same.
func TestRepair_IsOfTheRevisionThatWasFound(t *testing.T) {
	s := newSite(t, kvtest.Memory(t))
	key := s.waiting(s.ref("two"), "u", task.ReasonManual, s.now)

	found := s.audit()
	if len(found.Findings) != 1 {
		t.Fatalf("found %+v", found.Findings)
	}

	s.touch(key)
	res, err := s.auditor().Repair(s.ctx, requestOf(found.Findings[0]))
	if err != nil || res.Result != task.NotAsFound || s.all()[key] == "" {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestRepair_LeavesToPeopleWhatIsTheirs(t *testing.T) {
	s := newSite(t, kvtest.Memory(t))
	mends := []string{kindQueueOrphan.name, kindHistoryOrphan.name, kindMoveStalled.name, kindCleared.name,
		kindDeadOrphan.name, kindRunDataOrphan.name, kindVersionOrphan.name, kindStaleTombstone.name, kindLedgerOrphan.name, kindLinkOrphan.name, kindLinkMissing.name}

	for _, d := range damages {
		for _, k := range d.kinds {
			if slices.Contains(mends, k) {
				continue
			}

			res, err := s.auditor().Repair(s.ctx, task.RepairRequest{Kind: k, Key: s.keys.Owner(0), Revision: 1})
			if err != nil || res.Result != task.NotRepairable {
				t.Errorf("%s: %+v, %v", k, res, err)
			}
		}
	}

	// A request with the wrong kind deletes nothing.
	s.ended(s.one, s.entry.UID, 1, nil)
	s.chunk(s.one, s.entry.UID, 2)
	s.waiting(s.one, s.entry.UID, task.ReasonManual, s.now)
	s.put(s.keys.Root()+"moves/0001", map[string]any{"to": "b", "since": task.At(s.now)})
	s.put(s.keys.Cleared("x"), map[string]task.Time{"at": task.At(s.now)})
	s.drop(s.keys.Entry(s.one)) // the spec still keeps the task's records
	before := s.all()

	for _, k := range mends {
		for _, key := range append(slices.Sorted(maps.Keys(before)), s.keys.HistoryOf(s.one), s.keys.LedgerOf(s.one)) {
			there, err := s.etcd.Get(s.ctx, key)
			s.ok(err)

			rev := int64(0)
			if len(there.Kvs) > 0 {
				rev = there.Kvs[0].ModRevision
			}

			res, err := s.auditor().Repair(s.ctx, task.RepairRequest{Kind: k, Key: key, Revision: rev})
			if err != nil || res.Result == task.Repaired {
				t.Errorf("%s of %s: %+v, %v", k, key, res, err)
			}
		}
	}

	if !maps.Equal(before, s.all()) {
		t.Error("something was deleted")
	}
}
