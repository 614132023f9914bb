package check

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// dependentJudge judges tasks that run after others: each end of a run of a source becomes one trigger for each of its dependents
// (G63, sent.go), and each trigger gets one outcome (G64, taken.go).
//
//	end of a run of A ──owner of A──▶ trigger of B ──owner of B──▶ run of B, or the record of a trigger that did not run
//
// The judge follows the records of each source by itself: its subscribers since when they are in force, its cursor, and the ends that the
// cursor has not passed. An owner reads the subscribers before it commits, and the commit compares only the cursor. So the judge asks what
// an end owed at any revision at which the owner may have read: since the end, and since the cursor was written last.
type dependentJudge struct {
	judge
	fences *fenceJudge
	stats  *stats

	sources  map[record.Ref]*sourceState                   // by name, without the shard
	triggers map[record.Ref]map[triggerRef]*pendingTrigger // by dependent
	origins  map[runRef]task.Causation                     // what has started each run of a dependent

	now    int64         // when the last revision was written, by the observer's clock, in ms; 0: not known
	swept  int64         // when unsent ends were looked for last
	opened map[int]int64 // when the owners of shards have opened them
}

// sourceState is a task whose ends start others.
type sourceState struct {
	ref         record.Ref
	subscribers map[string]*subscription // by the name of the dependent
	cursor      record.Cursor
	cursorMod   int64        // the mod revision of the cursor; 0: there is none
	isDamaged   bool         // the cursor is unreadable, or names a revision that did not exist
	ends        []*sourceEnd // those that the cursor has not passed, in the order in which they are sent
}

// subscription is the record of a subscriber, in all its versions.
type subscription struct{ versions []subscriberVersion }

// subscriberVersion is a version of the record of a subscriber.
type subscriberVersion struct {
	record.Subscriber
	mod, until int64 // it is in force from mod on, until before until; until 0: it still is
	readable   bool
}

// sourceEnd is an end of a run of a source.
type sourceEnd struct {
	run    *task.Run
	id     string
	create int64 // of its record in the history
	at     int64 // when it was written, by the observer's clock, in ms
	gone   int64 // the revision that deleted the record; 0: it exists

	isReported bool
}

// triggerRef identifies a trigger of a dependent.
type triggerRef struct{ source, run string }

// pendingTrigger is a trigger that has no outcome yet.
type pendingTrigger struct {
	record.Pending
	readable bool
}

// subscriberChange is a write or a deletion of the record of a subscriber.
type subscriberChange struct {
	key       string
	source    record.Ref
	dependent string
	version   *subscriberVersion // nil: deleted
}

// cursorChange is a write or a deletion of a cursor.
type cursorChange struct {
	key               string
	cursor            record.Cursor
	mod               int64
	deleted, readable bool
}

// triggerChange is a write or a deletion of a trigger.
type triggerChange struct {
	key     string
	trigger *pendingTrigger // nil: deleted
}

// dependentChanges is what a revision changes of the records of sources and dependents.
type dependentChanges struct {
	subscribers []subscriberChange
	cursors     map[record.Ref]*cursorChange // by source
	triggers    map[record.Ref]map[triggerRef]triggerChange
}

func newDependentChanges() dependentChanges {
	return dependentChanges{cursors: map[record.Ref]*cursorChange{}, triggers: map[record.Ref]map[triggerRef]triggerChange{}}
}

func newDependentJudge(base judge, fences *fenceJudge, stats *stats) *dependentJudge {
	return &dependentJudge{
		judge: base, fences: fences, stats: stats, sources: map[record.Ref]*sourceState{}, triggers: map[record.Ref]map[triggerRef]*pendingTrigger{},
		origins: map[runRef]task.Causation{}, opened: map[int]int64{},
	}
}

// decodeSubscriber decodes a change of the record of a subscriber. One that cannot be read is in force, but owes nothing.
func (dec *decoder) decodeSubscriber(d *delta, k record.ShardKey, ev Event) {
	ch := subscriberChange{key: ev.Key, source: k.Ref, dependent: k.Peer}
	if !ev.Deleted {
		s, err := record.Decode[record.Subscriber](ev.Value)
		ch.version = &subscriberVersion{Subscriber: s, mod: ev.ModRevision, readable: err == nil && s.UID != ""}
	}

	d.subscribers = append(d.subscribers, ch)
}

// decodeCursor decodes a change of the cursor of a source.
func (dec *decoder) decodeCursor(d *delta, k record.ShardKey, ev Event) {
	ch := &cursorChange{key: ev.Key, mod: ev.ModRevision, deleted: ev.Deleted}
	if !ev.Deleted {
		c, err := record.Decode[record.Cursor](ev.Value)
		ch.cursor, ch.readable = c, err == nil && c.Create > 0
	}

	d.cursors[k.Ref] = ch
}

// decodeTrigger decodes a change of a trigger.
func (dec *decoder) decodeTrigger(d *delta, k record.ShardKey, ev Event) {
	ch := triggerChange{key: ev.Key}
	if !ev.Deleted {
		t, err := record.Decode[task.Trigger](ev.Value)
		ch.trigger = &pendingTrigger{readable: err == nil && t.UID != "" && !t.At.IsZero()}
		ch.trigger.Pending = record.Pending{Trigger: t, Ref: k.Ref, Source: k.Peer, Run: k.Run, Create: ev.CreateRevision, Mod: ev.ModRevision}
	}

	all := d.triggers[k.Ref]
	if all == nil {
		all = map[triggerRef]triggerChange{}
		d.triggers[k.Ref] = all
	}
	all[triggerRef{k.Peer, k.Run}] = ch
}

// checkRevision judges what a revision changes of the records of sources and dependents, and applies it. The revision is not applied to the
// cluster yet.
func (j *dependentJudge) checkRevision(d *delta, at time.Time) {
	j.advance(at)
	j.noteOpened(d)

	j.checkLinks(d)
	j.checkTrims(d)
	for _, ref := range slices.SortedFunc(maps.Keys(d.cursors), compareRefs) {
		j.checkCursor(d, ref, d.cursors[ref])
	}
	j.checkNewTriggers(d)
	all := j.takenIn(d)
	for _, ref := range slices.SortedFunc(maps.Keys(all), compareRefs) {
		j.checkTaken(d, ref, all[ref])
	}
	j.checkOrigins(d)

	j.applyChanges(d)
}

// applyListed applies the first list. It does not show since when the owners of shards have had them open.
func (j *dependentJudge) applyListed(d *delta, at time.Time) {
	if !at.IsZero() {
		j.now = at.UnixMilli()
	}
	for id := range d.watermarks {
		j.opened[id] = j.now
	}

	j.applyChanges(d)
}

// noteOpened notes when the owners of shards open them.
func (j *dependentJudge) noteOpened(d *delta) {
	for id, m := range d.watermarks {
		if !m.deleted && !m.unreadable && !j.cluster.shardOf(id).opened {
			j.opened[id] = j.now
		}
	}
}

// sourceOf returns the state of a source, and creates it if it is new.
func (j *dependentJudge) sourceOf(ref record.Ref) *sourceState {
	s := j.sources[withoutShard(ref)]
	if s == nil {
		s = &sourceState{ref: ref, subscribers: map[string]*subscription{}}
		j.sources[withoutShard(ref)] = s
	}

	return s
}

// applyChanges applies a revision, or the first list.
func (j *dependentJudge) applyChanges(d *delta) {
	for _, ch := range d.subscribers {
		j.applySubscriber(ch)
	}

	for ref, ch := range d.cursors {
		s := j.sourceOf(ref)
		s.cursor, s.cursorMod, s.isDamaged = ch.cursor, ch.mod, !ch.deleted && (!ch.readable || ch.cursor.Create >= ch.mod)
		if ch.deleted {
			s.cursorMod = 0
		}
		if !ch.deleted && !s.isDamaged {
			s.ends = slices.DeleteFunc(s.ends, func(e *sourceEnd) bool { return s.cursor.Compare(e.position()) >= 0 })
		}
	}

	j.applyEnds(d)

	for ref, ch := range d.entries {
		s, t := j.sources[withoutShard(ref)], j.cluster.taskOf(ref)
		if s != nil && t.entry != nil && (ch.deleted || !ch.unreadable && ch.entry.UID != t.entry.UID) {
			s.ends = nil // those of another task start nothing
		}
	}

	for ref, all := range d.triggers {
		pending := j.triggers[ref]
		if pending == nil {
			pending = map[triggerRef]*pendingTrigger{}
			j.triggers[ref] = pending
		}
		for k, ch := range all {
			if ch.trigger == nil {
				delete(pending, k)
				continue
			}
			if pending[k] == nil {
				j.stats.Triggers++
			}
			pending[k] = ch.trigger
		}
	}
}

// applySubscriber applies a write or a deletion of the record of a subscriber.
func (j *dependentJudge) applySubscriber(ch subscriberChange) {
	s := j.sourceOf(ch.source)
	sub := s.subscribers[ch.dependent]
	if sub == nil {
		sub = &subscription{}
		s.subscribers[ch.dependent] = sub
	}

	if n := len(sub.versions); n > 0 && sub.versions[n-1].until == 0 {
		sub.versions[n-1].until = j.cluster.revision
	}
	if ch.version != nil {
		sub.versions = append(sub.versions, *ch.version)
	}
}

// applyEnds adds the ends of runs of the present task that may be owed, and notes which records are deleted.
func (j *dependentJudge) applyEnds(d *delta) {
	for ref, ch := range d.ledgers {
		s := j.sources[withoutShard(ref)]
		for _, gone := range ch.deleted {
			if e := s.findEnd(gone.run); e != nil && !gone.late {
				e.gone = j.cluster.revision
			}
		}
	}

	for k, ch := range d.runs {
		s := j.sources[withoutShard(k.ref)]
		if s == nil || !s.isSubscribed() || ch.ended == nil || ch.endedCreate == 0 || !isEnd(ch.ended) || task.IsPart(k.id) {
			continue
		}

		e := &sourceEnd{run: ch.ended, id: k.id, create: ch.endedCreate, at: j.now}
		isPassed := s.cursorMod > 0 && !s.isDamaged && s.cursor.Compare(e.position()) >= 0
		if !isPassed && j.isOfTask(k.ref, d, ch.ended.UID) {
			at, _ := slices.BinarySearchFunc(s.ends, e, func(a, b *sourceEnd) int { return a.position().Compare(b.position()) })
			s.ends = slices.Insert(s.ends, at, e)
		}
	}
}

// isOfTask reports whether a uid is that of the task that exists before a revision, or in the first list.
func (j *dependentJudge) isOfTask(ref record.Ref, d *delta, uid string) bool {
	if t := j.cluster.taskOf(ref); t.entry != nil {
		return t.entry.UID == uid
	}
	e := d.entries[ref]
	return e != nil && !e.deleted && !e.unreadable && e.entry.UID == uid
}

// isEnd reports whether a final record is the end of a run that starts dependents.
func isEnd(r *task.Run) bool {
	return slices.Contains([]task.State{task.Succeeded, task.Failed, task.TimedOut, task.Lost, task.Cancelled}, r.State) && !r.Alone
}

// position returns where the end is in the order in which ends are sent.
func (e *sourceEnd) position() record.Cursor { return record.Cursor{Create: e.create, Run: e.id} }

// findEnd returns the end of a run that the cursor has not passed; nil: there is none.
func (s *sourceState) findEnd(run string) *sourceEnd {
	if s == nil {
		return nil
	}

	i := slices.IndexFunc(s.ends, func(e *sourceEnd) bool { return e.id == run })
	if i < 0 {
		return nil
	}

	return s.ends[i]
}

// isSubscribed reports whether the source has dependents.
func (s *sourceState) isSubscribed() bool {
	for _, sub := range s.subscribers {
		if n := len(sub.versions); n > 0 && sub.versions[n-1].until == 0 {
			return true
		}
	}

	return false
}

// owes reports whether an end is owed to a subscriber, by a version of its record.
func (e *sourceEnd) owes(v subscriberVersion) bool {
	if !v.readable || v.mod >= e.create {
		return false
	}

	switch state := e.run.State; v.When {
	case "", task.WhenSucceeded:
		return state == task.Succeeded
	case task.WhenFailed:
		return state == task.Failed || state == task.TimedOut || state == task.Lost
	case task.WhenEnded:
		return true
	}

	return false
}

// owedAlways reports whether an end is owed to a subscriber at every revision from one until before another.
func (s *subscription) owedAlways(e *sourceEnd, from, until int64) bool {
	for _, v := range s.versions {
		switch {
		case v.until != 0 && v.until <= from:
			continue
		case v.mod > from || !e.owes(v):
			return false
		case v.until == 0 || v.until >= until:
			return true
		}
		from = v.until
	}

	return false
}

// owedOnce returns a version of a subscriber by which an end is owed at some revision from one until before another, and which suits; nil:
// there is none.
func (s *subscription) owedOnce(e *sourceEnd, from, until int64, suits func(v *subscriberVersion) bool) *subscriberVersion {
	for i := range s.versions {
		v := &s.versions[i]
		if v.mod < until && (v.until == 0 || v.until > from) && e.owes(*v) && suits(v) {
			return v
		}
	}

	return nil
}

// readsFrom returns the earliest revision at which the owner of a source may have read what it commits about an end: the commit compares the
// cursor.
func (s *sourceState) readsFrom(e *sourceEnd) int64 { return max(e.create, s.cursorMod) }

// checkEnd judges what is left when the history ends (G63, G64), if all runs must have ended.
func (j *dependentJudge) checkEnd() {
	if !j.opts.Ended {
		return
	}

	for _, ref := range slices.SortedFunc(maps.Keys(j.sources), compareRefs) {
		for _, e := range j.sources[ref].ends {
			j.checkUnsent(j.sources[ref], e, "when the history ends")
		}
	}

	for _, ref := range slices.SortedFunc(maps.Keys(j.triggers), compareRefs) {
		for _, k := range slices.SortedFunc(maps.Keys(j.triggers[ref]), compareTriggers) {
			j.breachTask("G64", ref, 0, j.keys.Trigger(ref, k.source, k.run), "the trigger has no outcome when the history ends")
		}
	}
}

// compareTriggers orders triggers by their keys.
func compareTriggers(a, b triggerRef) int {
	return cmp.Or(strings.Compare(a.source, b.source), strings.Compare(a.run, b.run))
}

// Owed lists, in the records of all shards at one revision (Listed), the keys of the triggers without an outcome, and of the ended runs that are owed
// to a dependent and were not sent. When no runs are active and no tasks tick, there are soon none.
func Owed(keys record.Keys, shards []Event) (owed []string) {
	cursors, uids := map[record.Ref]record.Cursor{}, map[record.Ref]string{}
	subscribers := map[record.Ref][]subscriberVersion{}

	for _, e := range shards {
		k, ok := keys.ParseShard(e.Key)
		switch {
		case !ok:
		case k.Kind == record.KindTrigger:
			owed = append(owed, e.Key)
		case k.Kind == record.KindSent:
			cursors[k.Ref], _ = record.Decode[record.Cursor](e.Value) // one that cannot be read has passed nothing
		case k.Kind == record.KindEntry:
			entry, _ := record.DecodeEntry(e.Value)
			uids[k.Ref] = entry.UID
		case k.Kind == record.KindSubscriber:
			s, err := record.Decode[record.Subscriber](e.Value)
			subscribers[k.Ref] = append(subscribers[k.Ref], subscriberVersion{Subscriber: s, mod: e.ModRevision, readable: err == nil && s.UID != ""})
		}
	}

	for _, e := range shards {
		k, ok := keys.ParseShard(e.Key)
		if !ok || k.Kind != record.KindEnded || k.Late || len(subscribers[k.Ref]) == 0 {
			continue
		}

		r, err := record.DecodeEnded(k, e.Value)
		end := &sourceEnd{run: &r, id: k.Run, create: e.CreateRevision}
		isOwed := err == nil && isEnd(&r) && r.UID == uids[k.Ref] && cursors[k.Ref].Compare(end.position()) < 0
		if isOwed && slices.ContainsFunc(subscribers[k.Ref], end.owes) {
			owed = append(owed, e.Key)
		}
	}

	return owed
}
