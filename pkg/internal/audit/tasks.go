package audit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// specSet is which tasks have a spec, of which uid, and which of them an entry:
// 17 bytes for each. Names that hash alike hide each other: of a
// million, with a chance of one in thirty million.
type specSet struct {
	specs []specHash // in the order of their names, once sorted
	entry []bool
}

type specHash struct{ name, uid uint64 }

func hashOf(ref record.Ref) uint64 { return xxhash.Sum64String(ref.String()) }

func (s *specSet) add(ref record.Ref, uid string) {
	s.specs = append(s.specs, specHash{hashOf(ref), xxhash.Sum64String(uid)})
}

func (s *specSet) sort() {
	slices.SortFunc(s.specs, func(a, b specHash) int { return cmp.Compare(a.name, b.name) })
	s.entry = make([]bool, len(s.specs))
}

// find is the place of a task's spec; false if it has none.
func (s *specSet) find(ref record.Ref) (int, bool) {
	return slices.BinarySearchFunc(s.specs, hashOf(ref), func(a specHash, b uint64) int { return cmp.Compare(a.name, b) })
}

// lookAtSpecs reads all specs, and keeps which there are.
func (a *audit) lookAtSpecs() error {
	err := a.each(a.keys.Specs(), func(e *mvccpb.KeyValue) error {
		ns, name, ok := a.keys.ParseSpec(string(e.Key))
		if !ok {
			a.strange(e)
			return nil
		}
		a.unleased(e)
		var t struct {
			UID string `json:"uid"`
		}
		if err := json.Unmarshal(e.Value, &t); err != nil {
			a.unreadable(e, fmt.Sprintf("the spec of %s/%s", ns, name), err)
		}
		a.specs.add(a.Ref(ns, name), t.UID)
		return nil
	})
	a.specs.sort()
	return err
}

// specsWithoutEntry names the specs for which no shard had an entry. Their names
// are read once more: only hashes were kept.
func (a *audit) specsWithoutEntry() error {
	if !slices.Contains(a.specs.entry, false) {
		return nil
	}
	return a.each(a.keys.Specs(), func(e *mvccpb.KeyValue) error {
		ns, name, ok := a.keys.ParseSpec(string(e.Key))
		ref := a.Ref(ns, name)
		if i, found := a.specs.find(ref); !ok || !found || a.specs.entry[i] {
			return nil
		}
		a.suspect(kindNoEntry.of(fmt.Sprintf("task %s has a spec and no entry", ref), string(e.Key), a.keys.Entry(ref)),
			seen(e), store.Seen{Key: a.keys.Entry(ref)})
		return nil
	})
}

// mayBe reports whether a task's spec is of this uid, or cannot be read.
func (s *specSet) mayBe(ref record.Ref, uid string) bool {
	i, ok := s.find(ref)
	return ok && (s.specs[i].uid == xxhash.Sum64String(uid) || s.specs[i].uid == xxhash.Sum64String(""))
}

// inShard is what the audit knows of an entry while it is in its shard.
type inShard struct {
	uid     string
	mod     int64
	overlap string
	target  task.Target
	secret  bool // its attempts read one
	bad     bool
}

// lookAtEntry judges an entry, and keeps what its queue and history are held against.
func (a *audit) lookAtEntry(s *shardLook, e *mvccpb.KeyValue, ref record.Ref) {
	a.unleased(e)
	parsed, err := readEntry(e.Value)
	if err != nil {
		a.unreadable(e, "the entry of "+ref.String(), err)
	}
	s.entries[ref.String()] = inShard{parsed.UID, e.ModRevision, parsed.Overlap, parsed.Target, parsed.Action.NeedsKey(), err != nil}
	i, hasSpec := a.specs.find(ref)
	switch home := a.Ref(ref.Namespace, ref.Name); {
	case home.Shard != ref.Shard:
		a.suspect(kindWrongShard.of(fmt.Sprintf("the entry of %s is in shard %d, and belongs into shard %d", ref, ref.Shard, home.Shard), string(e.Key)), seen(e))
		return
	case !hasSpec:
		a.suspect(kindNoSpec.of(fmt.Sprintf("task %s has an entry and no spec", ref), string(e.Key), a.keys.Spec(ref)),
			seen(e), store.Seen{Key: a.keys.Spec(ref)})
	default:
		a.specs.entry[i] = true
		if err == nil && a.specs.specs[i].uid != xxhash.Sum64String(parsed.UID) {
			a.suspectUIDs(e, ref)
		}
	}
	if err == nil && parsed.Ticks() && !usedUp(parsed) {
		a.lookAtTicks(s, ref, parsed, e.CreateRevision)
	}
}

// suspectUIDs suspects a spec of another uid than its entry has. Both are
// written together, and neither may have changed at the second look.
func (a *audit) suspectUIDs(e *mvccpb.KeyValue, ref record.Ref) {
	spec := a.keys.Spec(ref)
	found, err := a.get([]string{spec})
	if err != nil || found[spec] == nil {
		return // it goes as we look: no finding
	}
	var t struct {
		UID string `json:"uid"`
	}
	if json.Unmarshal(found[spec].Value, &t) != nil || t.UID == uidOf(e.Value) {
		return // unreadable, and told
	}
	a.suspect(kindUIDs.of(fmt.Sprintf("the spec of %s has uid %q, its entry %q", ref, t.UID, uidOf(e.Value)), string(e.Key), spec),
		seen(e), seen(found[spec]))
}

func uidOf(value []byte) string {
	e, _ := record.DecodeEntry(value)
	return e.UID
}

// usedUp reports whether an entry has had as many runs as it may.
func usedUp(e task.Entry) bool { return e.MaxRuns > 0 && e.Own != nil && e.Own.Runs >= e.MaxRuns }

// lookAtTicks looks for a tick that has been due for longer than its grace, and is not decided.
func (a *audit) lookAtTicks(s *shardLook, ref record.Ref, e task.Entry, create int64) {
	if s.markMod == 0 {
		return // the missing watermark is a finding of its own
	}
	sched, err := schedule.Parse(e.Timing(), e.Anchor.Time)
	if err != nil {
		return
	}

	// Up to here the task's ticks are decided, or there are none.
	after := e.From.Time
	if create <= s.mark.Seen {
		if last, any := sched.LastDue(markedUpTo(s.mark, ref), e.UID); any && last.After(after) {
			after = last
		}
	}
	if until, paused := e.Silence(); paused && until.After(after) {
		after = until.Time
	}

	tick, ok := sched.Next(after)
	late := a.at.Add(-max(e.Missed.Grace.Std(), 0) - skew)
	if !ok || sched.Due(tick, e.UID).After(late) {
		return
	}

	s.overdue++
	if at := tick.UnixMilli(); s.oldest == 0 || at < s.oldest {
		s.oldest, s.late = at, ref
	}
}

// markedUpTo is up to when a watermark says that the ticks of a task are decided.
func markedUpTo(w record.Watermark, ref record.Ref) time.Time {
	if w.Last != "" && ref.String() > w.Last {
		return w.Time.Add(-time.Millisecond)
	}
	return w.Time.Time
}

const mostEntry = 2 * task.MaxAction // as large as an owner reads

// readEntry reads an entry as its owner does: what that would refuse is an error.
func readEntry(value []byte) (task.Entry, error) {
	if len(value) > mostEntry {
		return task.Entry{}, fmt.Errorf("%d bytes; at most %d are read", len(value), mostEntry)
	}
	e, err := record.DecodeEntry(value)
	if err != nil {
		return e, err
	}
	spec := task.Spec{Name: "name", Namespace: "namespace", Action: e.Action, Schedule: e.Schedule, Timezone: e.Timezone,
		Timeout: e.Timeout, KillGrace: e.KillGrace, Overlap: e.Overlap, Missed: e.Missed, Retry: e.Retry, Target: e.Target, History: e.History, Output: e.Output,
		Start: e.Start, End: e.End, Jitter: e.Jitter, MaxRuns: e.MaxRuns, TTL: e.TTL, Queue: e.Queue, MaxActive: e.MaxActive,
		Deadline: e.Deadline, PauseAfter: e.PauseAfter,
		KillSignal: e.KillSignal,
		Success:    e.Success,
	}
	if err := schedule.Check(e.Timing()); err != nil {
		return e, err
	}
	return e, spec.Validate()
}
