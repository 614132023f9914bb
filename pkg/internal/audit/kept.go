package audit

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// versionsPrefix is where the former versions of all tasks are.
func (a *audit) versionsPrefix() string { return a.keys.Root() + "versions/" }

// gravesFor is how long a tombstone may stay: leaders remove it after a week.
const gravesFor = 9 * 24 * time.Hour

// lookAtDead judges a dead run: of a task that is gone nobody runs it again.
func (a *audit) lookAtDead(s *shardLook, e *mvccpb.KeyValue, k record.ShardKey) {
	a.unleased(e)
	w, err := record.DecodeWaiting(k, e.Value)
	if err != nil {
		a.unreadable(e, fmt.Sprintf("a dead run of %s", k.Ref), err)
		return
	}
	if a.has(s, k.Ref, w.UID) {
		return
	}
	entry := s.entries[k.Ref.String()]
	a.suspect(kindDeadOrphan.of(fmt.Sprintf("run %s is dead, and its task %s (uid %s) is gone", k.Run, k.Ref, w.UID), string(e.Key)),
		seen(e), store.Seen{Key: a.keys.Entry(k.Ref), Mod: entry.mod})
}

// lookAtKept judges what is kept of former specs and of deleted tasks.
func (a *audit) lookAtKept() error {
	if err := a.each(a.versionsPrefix(), a.lookAtVersion); err != nil {
		return err
	}
	return a.each(a.keys.Tombstones(), a.lookAtGrave)
}

// lookAtFreezes reads what is frozen, and what therefore waits as it should.
func (a *audit) lookAtFreezes() error {
	key := a.keys.Freezes()
	found, err := a.get([]string{key})
	if e := found[key]; err == nil && e != nil {
		a.unleased(e)
		if err := json.Unmarshal(e.Value, &a.freezes); err != nil {
			a.unreadable(e, "the record of freezes", err)
		}
	}
	return err
}

// parseVersion takes the key of a former version apart.
func (a *audit) parseVersion(key string) (ref record.Ref, generation int64, ok bool) {
	parts := strings.Split(strings.TrimPrefix(key, a.versionsPrefix()), "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return record.Ref{}, 0, false
	}
	generation, err := strconv.ParseInt(parts[2], 10, 64)
	return a.Ref(parts[0], parts[1]), generation, err == nil
}

func (a *audit) lookAtVersion(e *mvccpb.KeyValue) error {
	ref, generation, ok := a.parseVersion(string(e.Key))
	if !ok {
		a.strange(e)
		return nil
	}
	a.unleased(e)
	var t struct {
		UID string `json:"uid"`
	}
	if err := json.Unmarshal(e.Value, &t); err != nil {
		a.unreadable(e, fmt.Sprintf("generation %d of %s", generation, ref), err)
		return nil
	}
	if a.specs.mayBe(ref, t.UID) {
		return nil
	}
	spec, err := a.specNow(ref)
	if err == nil {
		a.suspect(kindVersionOrphan.of(fmt.Sprintf("generation %d of task %s (uid %s), which is gone", generation, ref, t.UID), string(e.Key)), seen(e), spec)
	}
	return err
}

func (a *audit) lookAtGrave(e *mvccpb.KeyValue) error {
	ns, name, ok := strings.Cut(strings.TrimPrefix(string(e.Key), a.keys.Tombstones()), "/")
	if !ok || ns == "" || name == "" || strings.Contains(name, "/") {
		a.strange(e)
		return nil
	}
	a.unleased(e)
	var g record.Tombstone
	if err := json.Unmarshal(e.Value, &g); err != nil {
		a.unreadable(e, fmt.Sprintf("what is remembered of %s/%s", ns, name), err)
		return nil
	}
	ref := a.Ref(ns, name)
	if _, lives := a.specs.find(ref); lives {
		spec, err := a.specNow(ref)
		if err == nil && spec.Mod != 0 {
			a.suspect(kindGrave.of(fmt.Sprintf("task %s is there, and is said to have been deleted %s", ref, a.ago(g.DeletedAt.Time)), string(e.Key)), seen(e), spec)
		}
		return err
	}
	if a.at.Sub(g.DeletedAt.Time) > gravesFor {
		a.suspect(kindGrave.of(fmt.Sprintf("task %s was deleted %s, and it is remembered yet", ref, a.ago(g.DeletedAt.Time)), string(e.Key)), seen(e))
	}
	return nil
}

// specNow is a task's spec as the audit saw it.
func (a *audit) specNow(ref record.Ref) (store.Seen, error) {
	key := a.keys.Spec(ref)
	found, err := a.get([]string{key})
	if e := found[key]; e != nil {
		return seen(e), err
	}
	return store.Seen{Key: key}, err
}

// mendDead deletes a dead run of a task that is gone.
func (a *audit) mendDead(r task.RepairRequest) (int64, error) {
	k, ok := a.keys.ParseShard(r.Key)
	if !ok || k.Kind != record.KindDead {
		return 0, changed("%s is no dead run", r.Key)
	}
	return a.mendOf(k.Ref, r, func(e *mvccpb.KeyValue) (string, error) {
		w, err := record.DecodeWaiting(k, e.Value)
		return w.UID, err
	})
}

// mendVersion deletes a former version of a task that is gone.
func (a *audit) mendVersion(r task.RepairRequest) (int64, error) {
	ref, _, ok := a.parseVersion(r.Key)
	if !ok || !strings.HasPrefix(r.Key, a.versionsPrefix()) {
		return 0, changed("%s is no former version", r.Key)
	}
	return a.mendOf(ref, r, func(e *mvccpb.KeyValue) (string, error) {
		var t struct {
			UID string `json:"uid"`
		}
		err := json.Unmarshal(e.Value, &t)
		return t.UID, err
	})
}

// mendOf deletes a record of a task that is gone, unless that comes back.
func (a *audit) mendOf(ref record.Ref, r task.RepairRequest, uid func(*mvccpb.KeyValue) (string, error)) (int64, error) {
	of, err := a.owning(ref)
	if err != nil {
		return 0, err
	}
	rec, err := a.as(r)
	if err != nil {
		return 0, err
	}
	if id, err := uid(rec); err != nil || of.has(id) {
		return 0, changed("the task of %s is there", r.Key)
	}
	return a.drop(rec, of.seen...)
}

// mendGrave deletes the tombstone of a task that is there, or of one long gone.
func (a *audit) mendGrave(r task.RepairRequest) (int64, error) {
	ns, name, ok := strings.Cut(strings.TrimPrefix(r.Key, a.keys.Tombstones()), "/")
	if !ok || !strings.HasPrefix(r.Key, a.keys.Tombstones()) {
		return 0, changed("%s is no tombstone", r.Key)
	}
	of, err := a.owning(a.Ref(ns, name))
	if err != nil {
		return 0, err
	}
	rec, err := a.as(r)
	if err != nil {
		return 0, err
	}
	var g record.Tombstone
	if json.Unmarshal(rec.Value, &g) != nil || of.spec == nil && a.at.Sub(g.DeletedAt.Time) <= gravesFor {
		return 0, changed("the task of %s is not there any more", r.Key)
	}
	return a.drop(rec, of.seen...)
}
