package check

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// What is kept beside the present: the specs' former versions, tombstones of
// deleted tasks, dead runs (G25).

const keptVersions = 10

// nameOf is a task's name, whatever shard it is in.
func nameOf(ref store.Ref) store.Ref { return store.Ref{Namespace: ref.Namespace, Name: ref.Name} }

// specChange is what a revision does to a spec.
type specChange struct {
	key        string
	value      []byte // nil: gone
	uid        string
	generation int64
}

// known is what is kept, as it stands at a revision.
type known struct {
	specs    map[store.Ref]specChange
	versions map[store.Ref]map[int64]bool // by name and generation
	graves   map[store.Ref]tombstone
}

// tombstone is what is remembered of a deleted task.
type tombstone struct {
	UID       string    `json:"uid"`
	DeletedAt task.Time `json:"deleted_at"`
	DeletedBy string    `json:"deleted_by"`
	Why       string    `json:"why"`
}

// remembered is what a revision changes of all that.
type remembered struct {
	versions map[versionRef]*versionChange
	graves   map[store.Ref]*graveChange
	dead     map[runRef]*deadChange
}

type versionRef struct {
	ref        store.Ref
	generation int64
}

type versionChange struct {
	key   string
	value []byte // nil: gone
}

type graveChange struct {
	tombstone
	key  string
	gone bool
}

type deadChange struct {
	key   string
	state task.State // "": gone
	// by is who takes it off the list, if the record says so: it goes in the next
	// revision that has it.
	by string
}

func newKnown() known {
	return known{map[store.Ref]specChange{}, map[store.Ref]map[int64]bool{}, map[store.Ref]tombstone{}}
}

func newRemembered() remembered {
	return remembered{map[versionRef]*versionChange{}, map[store.Ref]*graveChange{}, map[runRef]*deadChange{}}
}

// retentionJudge judges what is kept beside the present (G25). But for dead runs and retries, it
// does so only if it is asked to, see Options.Remembered.
type retentionJudge struct{ judge }

// checkRevision judges what a revision keeps of what it overwrites or deletes.
func (j *retentionJudge) checkRevision(d *delta) {
	for v, ch := range d.versions {
		j.checkVersion(d, v, ch)
	}
	for k, ch := range d.dead {
		if ch.by != "" && j.cluster.task(k.ref).dead[k.id] {
			continue // it is dead already, and about to go
		}
		if r := d.runs[k]; ch.state != "" && (r == nil || r.ended == nil || r.ended.State != ch.state || !failure(ch.state)) {
			j.breachTask("G25", k.ref, 0, ch.key, "run %s is dead as %s, and no end of it in this revision says so", k.id, ch.state)
		}
	}
	if !j.opts.Remembered {
		return
	}
	for _, ref := range slices.SortedFunc(maps.Keys(d.specs), compareRefs) {
		now := d.specs[ref]
		was, there := j.cluster.kept.specs[ref]
		grave := d.graves[ref]
		switch {
		case now.value == nil && there:
			if grave == nil && j.opts.Full {
				continue // it took deletes only, maybe
			}
			if grave == nil || grave.gone || grave.UID != was.uid {
				j.breachTask("G25", ref, 0, now.key, "the task is deleted, and no tombstone says by whom")
			}
		case there && was.uid == now.uid:
			if v := d.versions[versionRef{ref, was.generation}]; v == nil || v.value == nil {
				j.breachTask("G25", ref, 0, now.key, "generation %d takes the place of %d, which is not kept", now.generation, was.generation)
			}
			if now.generation <= was.generation {
				j.breachTask("G25", ref, 0, now.key, "generation %d takes the place of %d", now.generation, was.generation)
			}
		case !there && now.value != nil:
			if _, buried := j.cluster.kept.graves[ref]; buried && (grave == nil || !grave.gone) {
				j.breachTask("G25", ref, 0, now.key, "the task is created anew, and its tombstone stays")
			}
		}
	}
}

// checkVersion judges a former version that is put, or goes.
func (j *retentionJudge) checkVersion(d *delta, v versionRef, ch *versionChange) {
	spec, there := j.cluster.kept.specs[v.ref]
	next := d.specs[v.ref]
	if ch.value != nil {
		if !there || next == nil || spec.generation != v.generation || !sameJSON(spec.value, ch.value) {
			j.breachTask("G25", v.ref, 0, ch.key, "generation %d is kept, and is not what this revision overwrites", v.generation)
		}
		return
	}
	if there && (next == nil || next.value != nil) {
		left := 0
		for g := range j.cluster.kept.versions[v.ref] {
			if g > v.generation {
				left++
			}
		}
		if next != nil {
			left++ // the present one becomes a former one
		}
		if left < keptVersions {
			j.breachTask("G25", v.ref, 0, ch.key, "generation %d is forgotten, and only %d later ones are kept", v.generation, left)
		}
	}
}

// sameJSON compares two specs but for what is not stored.
func sameJSON(a, b []byte) bool {
	var x, y map[string]any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return string(a) == string(b)
	}
	delete(x, "revision")
	delete(y, "revision")
	return reflect.DeepEqual(x, y)
}

// checkKept checks that no more is kept than should be.
func (j *retentionJudge) checkKept(d *delta) {
	if !j.opts.Remembered {
		return
	}
	for ref, s := range d.specs {
		n := len(j.cluster.kept.versions[ref])
		if n > keptVersions {
			j.breachTask("G25", ref, 0, s.key, "%d former versions are kept; at most %d should be", n, keptVersions)
		}
		if s.value == nil && n > 0 {
			j.breachTask("G25", ref, 0, s.key, "the task is deleted, and %d of its former versions stay", n)
		}
	}
}

// checkDeadLetter checks that a run that has used up its attempts waits for a person.
func (j *retentionJudge) checkDeadLetter(d *delta, ch *runChange, r *run, taken *attempt) {
	t := j.cluster.task(ch.ref)
	gone := d.entries[ch.ref] != nil && d.entries[ch.ref].gone
	if !j.opts.Remembered || taken == nil || taken.CancelRequested || !failure(ch.ended.State) || t.entry == nil || t.entry.line != r.line || gone {
		return
	}
	if dead := d.dead[ch.runRef]; dead == nil || dead.state == "" {
		j.breachTask("G25", ch.ref, r.tick, ch.endedKey, "run %s ends as %s for good, and is not among the dead", ch.id, ch.ended.State)
	}
}

// checkRetryOf checks that a dead run is run again once: the same revision takes
// it from the dead.
func (j *retentionJudge) checkRetryOf(d *delta, ch *runChange, r *run, rec *task.Run, key string) {
	if rec.RetryOf == "" {
		return
	}
	of := runRef{ch.ref, rec.RetryOf}
	if dead := d.dead[of]; !j.cluster.task(ch.ref).dead[rec.RetryOf] || dead == nil || dead.state != "" {
		j.breachTask("G25", ch.ref, 0, key, "run %s is to run %s again, which this revision does not take from the dead", ch.id, rec.RetryOf)
	}
	if rec.Trigger != task.TriggerManual {
		j.breachTask("G25", ch.ref, 0, key, "run %s is to run %s again, and its trigger is %q", ch.id, rec.RetryOf, rec.Trigger)
	}
}

// checkTTLDeletion judges the deletion of a task by its ttl: its schedule is over,
// and nothing of it waits or runs, for as long as it says.
func (j *retentionJudge) checkTTLDeletion(d *delta, t *tasked) {
	grave := d.graves[nameOf(t.ref)]
	if t.entry == nil || grave == nil || grave.gone || !byTTL(grave.tombstone) {
		return
	}
	e, line := t.entry, t.entry.line
	wrong := func(format string, args ...any) {
		j.breachTask("G25", t.ref, 0, grave.key, "the task is deleted by its ttl, and "+format, args...)
	}
	if e.TTL == 0 {
		wrong("has none")
		return
	}
	if slices.Contains(e.Schedule, "@manual") {
		wrong("is a person's to run")
	}
	if open := t.open(line); len(open) > 0 {
		wrong("run %s has not ended", open[0].id)
	}
	since := line.lastEnd
	if line.stretch.ticks != nil {
		decided := j.cluster.decidedUpTo(t)
		if at, more := line.stretch.ticks.next(max(decided, line.stretch.start)); more {
			wrong("has a tick to come, %s", stamp(instant(at)))
		}
	}
	for at := range line.outcomes {
		since = max(since, at)
	}
	// The end is by one clock, the deletion by another.
	if at := ms(grave.DeletedAt) + 2*j.opts.Skew.Milliseconds(); at < since+int64(e.TTL)/1e6 {
		wrong("%s had not passed since %s", e.TTL, stamp(instant(since)))
	}
}

// byTTL tells the deletions that no person made.
func byTTL(g tombstone) bool { return g.Why == "ttl" || g.DeletedBy == task.PausedByFailures }
