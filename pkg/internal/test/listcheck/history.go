package listcheck

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// History is what etcd contained at each time, as far as lists of tasks need it.
type History struct {
	tasks   []*taskHistory // ordered by name
	written []revisionTime // when each revision was written, in order
	delays  []Delay        // in the order of time
}

// Delay says that a watch delivered something at a time, and that it had not yet delivered what was written By before.
type Delay struct {
	At time.Time
	By time.Duration
}

// revisionTime is when a revision was written.
type revisionTime struct {
	revision int64
	at       time.Time
}

// taskHistory is the history of all tasks of one name.
type taskHistory struct {
	name     string // namespace/name
	shard    int
	versions []version // in the order of time

	// The state after the latest revision.
	now     version
	uid     string
	dead    map[string]int64 // the create revision of each dead run
	success map[string]int64 // the create revision of the record of each run that succeeded
}

// version is what a list shows of a task from a time on.
type version struct {
	since       time.Time
	exists      bool
	paused      bool
	pausedUntil time.Time // zero: the pause has no end
	failing     bool      // it has a dead run whose create revision is above that of the last success
}

// NewHistory replays a history. timeOf returns when a revision was written. delays contains what watches have delivered
// late, in any order.
func NewHistory(keys record.Keys, events []check.Event, timeOf func(revision int64) time.Time, delays []Delay) *History {
	h := &History{delays: slices.SortedFunc(slices.Values(delays), func(a, b Delay) int { return a.At.Compare(b.At) })}
	tasks := map[string]*taskHistory{}

	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Revision == events[0].Revision {
			n++
		}

		at := timeOf(events[0].Revision)
		h.written = append(h.written, revisionTime{events[0].Revision, at})

		changed := map[*taskHistory]bool{}
		for i := range events[:n] {
			if t := applyEvent(keys, tasks, &events[i]); t != nil {
				changed[t] = true
			}
		}

		for t := range changed {
			t.addVersion(at)
		}

		events = events[n:]
	}

	h.tasks = slices.SortedFunc(maps.Values(tasks), func(a, b *taskHistory) int { return cmp.Compare(a.name, b.name) })

	return h
}

// applyEvent applies an event to its task. It returns nil if the event concerns no list.
func applyEvent(keys record.Keys, tasks map[string]*taskHistory, ev *check.Event) *taskHistory {
	k, ok := keys.ParseShard(ev.Key)
	if !ok || k.Kind != record.KindEntry && k.Kind != record.KindEnded && k.Kind != record.KindDead || k.Late {
		return nil
	}

	t := tasks[k.Ref.String()]
	if t == nil {
		t = &taskHistory{name: k.Ref.String(), shard: k.Ref.Shard, dead: map[string]int64{}, success: map[string]int64{}}
		tasks[t.name] = t
	}

	switch {
	case k.Kind == record.KindEntry:
		t.applyEntry(ev)
	case k.Kind == record.KindDead && ev.Deleted:
		delete(t.dead, k.Run)
	case k.Kind == record.KindDead && !record.IsDeadFailure(ev.Value): // a workflow that was cancelled
	case k.Kind == record.KindDead:
		t.dead[k.Run] = ev.CreateRevision
	case ev.Deleted:
		delete(t.success, k.Run)
	default:
		if end, ok := record.EndOf(ev.Value); ok && end.State == task.Succeeded {
			t.success[k.Run] = ev.CreateRevision
		}
	}

	return t
}

// applyEntry applies a version of a task's entry, or its deletion.
func (t *taskHistory) applyEntry(ev *check.Event) {
	if ev.Deleted {
		t.now, t.uid = version{}, ""
		return
	}

	e, err := record.DecodeEntry(ev.Value)
	if err != nil {
		t.now.exists = true
		return
	}

	t.uid = e.UID
	t.now = version{exists: true, paused: e.Paused}
	if until, ends := e.Silence(); e.Paused && ends {
		t.now.pausedUntil = until.Time
	}
}

// addVersion adds the state after a revision that was written at a time.
func (t *taskHistory) addVersion(at time.Time) {
	v := t.now
	v.since = at
	v.failing = v.exists && t.newest(t.dead) > t.newest(t.success)

	if n := len(t.versions); n == 0 || !v.equalTo(t.versions[n-1]) {
		t.versions = append(t.versions, v)
	}
}

// newest returns the highest of the revisions of some runs. Runs of a deleted task of this name do not count.
func (t *taskHistory) newest(revisions map[string]int64) (newest int64) {
	for run, revision := range revisions {
		if task.RunBelongs(run, t.uid) {
			newest = max(newest, revision)
		}
	}

	return newest
}

// equalTo reports whether lists show the same of two versions.
func (v version) equalTo(other version) bool {
	v.since = other.since
	return v == other
}
