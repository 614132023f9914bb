package check

import (
	"fmt"
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Check judges a history: what was listed first, then every change of every
// later revision, in order, as Recorder.Events returns it. A history with a gap
// cannot be judged; Check reports the gaps that it can notice as "form".
func Check(keys store.Keys, events []Event, opts Options) Report {
	opts.Faults = inOrder(opts.Faults)
	c := newChecker(keys, opts)
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Revision == events[0].Revision && events[n].Listed == events[0].Listed {
			n++
		}
		c.step(events[:n])
		events = events[n:]
	}
	c.finish()
	return c.report()
}

// checker replays a history. Between two steps its fields are the cluster as it
// was at a revision; a step judges the next one against it, then applies it.
// Within a step "before" is that state, as it is for the compares of a
// transaction, and the delta is what the revision changes.
type checker struct {
	keys store.Keys
	opts Options

	revision   int64
	began      int64            // the revision of the first list; 0: there was nothing yet
	cluster    int              // how many shards there are, if the record says
	live       map[string]int64 // the create revisions of the keys that are there
	nodes      map[string]session
	leaders    map[string]int64  // keys of the election and their create revisions
	candidates map[string]string // the same keys and whose they are
	shards     map[int]*shard
	tasks      map[store.Ref]*tasked
	freezes    freezes
	known      known // specs, former versions, tombstones

	violations []Violation
	notes      map[string]int
	stats      stats
	moves      moves
}

// session is a node's key: one lease of one instance.
type session struct {
	instance string
	create   int64
	owns     bool // it may own shards
	weight   int
	joined   int64 // when it announced itself first, by its clock, in ms
	froze    int64 // the mod revision of the freezes that it obeys
	frozeAt  int64 // when it said so first, by its clock, in ms
}

// shard is what a shard's keys say, its tasks aside.
type shard struct {
	owner   store.Owner // Fence 0: there is none
	mark    store.Watermark
	markMod int64           // 0: there is none
	opened  bool            // a commit has followed the last change of fence or session
	bad     map[string]bool // its records that cannot be read
}

// tasked is a namespace and name: the tasks that bore it, one after another.
type tasked struct {
	ref    store.Ref
	entry  *entry // nil: there is none
	lines  map[string]*lineage
	runs   map[string]*run
	active map[string]*run // those in an inbox or between two attempts
	dead   map[string]bool // runs that wait for a person
}

// entry is an entry as it stands in its shard.
type entry struct {
	task.Entry
	create, mod int64
	line        *lineage
	ticks       *timing // nil: it has none
}

func newChecker(keys store.Keys, opts Options) *checker {
	return &checker{
		keys: keys, opts: opts, live: map[string]int64{},
		nodes: map[string]session{}, leaders: map[string]int64{}, candidates: map[string]string{},
		shards: map[int]*shard{}, tasks: map[store.Ref]*tasked{}, notes: map[string]int{},
		stats: newStats(), known: newKnown(),
	}
}

func (c *checker) shard(id int) *shard {
	s := c.shards[id]
	if s == nil {
		s = &shard{bad: map[string]bool{}}
		c.shards[id] = s
	}
	return s
}

func (c *checker) task(ref store.Ref) *tasked {
	t := c.tasks[ref]
	if t == nil {
		t = &tasked{ref: ref, lines: map[string]*lineage{}, runs: map[string]*run{}, active: map[string]*run{}, dead: map[string]bool{}}
		c.tasks[ref] = t
	}
	return t
}

// breach adds a violation at the present revision.
func (c *checker) breach(promise, key, format string, args ...any) {
	c.violations = append(c.violations, Violation{
		Promise: promise, Revision: c.revision, Key: key, Message: fmt.Sprintf(format, args...),
	})
}

// breachOf adds a violation about a task, and a tick if it is not 0.
func (c *checker) breachOf(promise string, ref store.Ref, tick int64, key, format string, args ...any) {
	c.breach(promise, key, format, args...)
	v := &c.violations[len(c.violations)-1]
	v.Task = ref.String()
	if tick != 0 {
		v.Tick = instant(tick)
	}
}

func (c *checker) note(format string, args ...any) { c.notes[fmt.Sprintf(format, args...)]++ }

// step judges and applies the changes of one revision, or the first list.
func (c *checker) step(events []Event) {
	if events[0].Revision < c.revision || (events[0].Listed && c.revision > 0) {
		c.breach("form", events[0].Key, "the history goes back to revision %d", events[0].Revision)
	}
	c.revision = events[0].Revision
	c.judgeGaps(events)
	d := c.parse(events)
	if events[0].Listed {
		c.list(d)
		return
	}
	c.judgeOwners(d)
	c.judgeMoves(d)
	c.judgeMarks(d)
	runs := d.sortedRuns()
	for _, r := range runs {
		c.judgeRun(d, r)
	}
	c.judgeStarts(d, runs)
	c.judgeRemembered(d)
	c.applyEntries(d)
	c.applyRemembered(d)
	c.applyFreezes(d)
	c.applyMarks(d)
	c.applyFleet(d)
	c.settleMoves(d)
}

// judgeGaps checks that each event follows from what is known of its key, as
// it does in a history without gaps.
func (c *checker) judgeGaps(events []Event) {
	for _, ev := range events {
		created, known := c.live[ev.Key]
		switch {
		case ev.Listed:
		case ev.Deleted && !known:
			c.breach("form", ev.Key, "the key is deleted, and was not there: the history has a gap")
		case !ev.Deleted && ev.CreateRevision != created && ev.CreateRevision != ev.Revision:
			c.breach("form", ev.Key, "the key was created at revision %d, which this history does not show", ev.CreateRevision)
		case known && ev.CreateRevision == ev.Revision:
			c.breach("form", ev.Key, "the key is created anew while it is there: the history has a gap")
		}
		if ev.Deleted {
			delete(c.live, ev.Key)
		} else {
			c.live[ev.Key] = ev.CreateRevision
		}
	}
}

// list takes the first list as it is.
func (c *checker) list(d *delta) {
	c.began = c.revision
	c.applyFreezes(d)
	c.applyRemembered(d)
	c.applyFleet(d)
	for id, m := range d.marks {
		s := c.shard(id)
		s.mark, s.markMod = m.mark, m.mod
		s.opened = s.owner.Fence < m.mod && c.nodes[s.owner.Node].create < m.mod
	}
	c.applyEntries(d)
	for _, r := range d.sortedRuns() {
		c.listRun(r)
	}
	c.listMoves()
}

// finish judges what only the end of the history can tell.
func (c *checker) finish() {
	for _, ref := range slices.SortedFunc(maps.Keys(c.tasks), compareRefs) {
		t := c.tasks[ref]
		c.stats.Tasks += int64(len(t.lines))
		c.endTicks(t)
		c.endRuns(t)
	}
	c.endOwners()
	c.endGone()
}

func (c *checker) report() Report {
	r := Report{Violations: c.violations, Summary: c.stats.summary()}
	for _, n := range slices.Sorted(maps.Keys(c.notes)) {
		if times := c.notes[n]; times > 1 {
			n = fmt.Sprintf("%s (%d times)", n, times)
		}
		r.Notes = append(r.Notes, n)
	}
	slices.SortStableFunc(r.Violations, func(a, b Violation) int { return int(a.Revision - b.Revision) })
	return r
}

// markedUpTo is up to when, in ms, a watermark decides the ticks of a covered
// task of that name.
func markedUpTo(w store.Watermark, name string) int64 {
	at := w.Time.UnixMilli()
	if w.Last != "" && name > w.Last {
		at--
	}
	return at
}

// ms is 0 for a time that is not set.
func ms(t task.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
