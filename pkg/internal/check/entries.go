package check

import (
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/task"

	"github.com/carillonhq/carillon/pkg/store"
)

// lineage is a task by its uid: one name may have had several.
type lineage struct {
	ref      store.Ref
	uid      string
	outcomes map[int64]*run // what each tick came to
	stretch  stretch
	last     int64 // when its latest tick was decided, by the owner's clock
	ownWork
}

// stretch is a time in which a task's ticks are those of one schedule: one or
// several versions of its entry that do not differ in that.
type stretch struct {
	ticks  *timing      // nil: paused, unreadable or used up, so that there are none
	start  int64        // ticks after it are this stretch's
	silent int64        // ticks up to it do not exist: a pause with an end; 0: none
	pauses []task.Pause // of a snapshot: those in which there were no ticks
	rev    int64        // of the version that began it
}

// applyEntries applies changes of entries, and judges the ticks of those that
// they end (G4).
func (c *checker) applyEntries(d *delta) {
	for _, ref := range slices.SortedFunc(maps.Keys(d.entries), compareRefs) {
		ch, t, s := d.entries[ref], c.task(ref), c.shard(ref.Shard)
		if t.entry != nil && !ch.gone && !ch.bad && d.specs[nameOf(ref)] == nil {
			c.needCommit(d, ref, 0, ch.key, "an entry without its spec")
		}
		switch {
		case ch.gone:
			c.judgeRemoval(d, t)
			c.endStretch(t, c.decided(t))
			t.entry = nil
		case t.entry == nil || (!ch.bad && t.entry.UID != ch.entry.UID):
			c.endStretch(t, c.decided(t))
			c.beginTask(t, s, ch)
		default:
			c.nextVersion(d, t, s, ch)
		}
	}
}

// beginTask takes a new task, whose ticks begin after its from, or one of the
// first list, whose past cannot be judged.
func (c *checker) beginTask(t *tasked, s *shard, ch *entryChange) {
	t.entry = &entry{Entry: ch.entry, create: ch.create, mod: ch.mod}
	line := t.line(ch.entry.UID)
	t.entry.line = line
	t.entry.ticks = c.ticksOf(t.ref, ch)
	line.counting = ch.mod
	line.stretch = stretch{ticks: t.entry.ticks, start: t.entry.decided(t.ref, s.mark, s.markMod), rev: ch.mod}
	line.stretch.silence(silence(ch.entry))
}

// nextVersion takes a new version of an entry.
func (c *checker) nextVersion(d *delta, t *tasked, s *shard, ch *entryChange) {
	old := *t.entry
	line := old.line
	if ch.bad {
		ch.entry, ch.entry.Paused, ch.entry.Own = old.Entry, true, nil
	}
	if ms(ch.entry.From) < ms(old.From) {
		c.breachOf("G5", t.ref, 0, ch.key, "from goes back from %s to %s", stamp(old.From.Time), stamp(ch.entry.From.Time))
	}
	c.judgeOwn(d, t, ch)
	next := &entry{Entry: ch.entry, create: ch.create, mod: ch.mod, line: line}
	if sameTicks(old.Entry, ch.entry) && (line.stretch.ticks == nil) == (ch.bad || !ticking(ch.entry)) {
		next.ticks = old.ticks
		t.entry = next
		return
	}
	c.judgeRevised(d, t, ch)
	decided := old.decided(t.ref, s.mark, s.markMod)
	if _, edited := d.specs[nameOf(t.ref)]; !edited && usedUp(ch.entry) && !usedUp(old.Entry) { // by the tick that its from says
		decided = max(decided, ms(ch.entry.From))
	}
	c.endStretch(t, decided)
	next.ticks = c.ticksOf(t.ref, ch)
	t.entry = next
	line.stretch = stretch{
		ticks: next.ticks, start: max(ms(ch.entry.From), decided), rev: ch.mod,
	}
	// Of a pause that ran to its end, and is cleared afterwards, the silence stays.
	if until := silence(old.Entry); !ch.entry.Paused && ms(ch.entry.From) == ms(old.From) {
		line.stretch.silence(until)
	}
	line.stretch.silence(silence(ch.entry))
}

// judgeRevised checks that an edit which may give a task new ticks tells the shard's
// owner so, by the key that its commits compare (G4).
func (c *checker) judgeRevised(d *delta, t *tasked, ch *entryChange) {
	if _, edited := d.specs[nameOf(t.ref)]; !edited || ch.bad || t.entry.ticks == nil && ticking(t.entry.Entry) || d.revised[t.ref.Shard] {
		return
	}

	old, next := t.entry.Entry, ch.entry
	more := !ticking(old) || !old.Timing().Same(next.Timing()) || !old.Anchor.Equal(next.Anchor.Time) ||
		old.Paused && (!next.Paused || silence(next) < silence(old))
	if ticking(next) && more {
		c.breachOf("G4", t.ref, 0, ch.key, "an edit gives the task ticks, and %s is not written with it", c.keys.Revised(t.ref.Shard))
	}
}

// silence takes the ticks up to an instant away.
func (st *stretch) silence(until int64) {
	if until != 0 {
		st.silent, st.start = until, max(st.start, until)
	}
}

func (t *tasked) line(uid string) *lineage {
	l := t.lines[uid]
	if l == nil {
		l = &lineage{ref: t.ref, uid: uid, outcomes: map[int64]*run{}}
		t.lines[uid] = l
	}
	return l
}

// ticksOf is the timing of an entry; nil if it has no ticks.
func (c *checker) ticksOf(ref store.Ref, ch *entryChange) *timing {
	if ch.bad || !ticking(ch.entry) {
		return nil
	}
	t, err := newTiming(ch.entry)
	if err != nil {
		c.note("the schedule of %s cannot be read and has no ticks: %v", ref, err)
		return nil
	}
	if !t.own {
		c.note("the ticks of %q in %s are package schedule's word", []string(ch.entry.Schedule), ch.entry.Timezone)
	}
	return t
}

// decided is up to which tick those of a task are decided at present.
func (c *checker) decided(t *tasked) int64 {
	if t.entry == nil {
		return 0
	}
	s := c.shard(t.ref.Shard)
	return t.entry.decided(t.ref, s.mark, s.markMod)
}

// endStretch judges the present stretch of a task: all of its ticks that are
// decided, those up to upTo, must have an outcome.
func (c *checker) endStretch(t *tasked, upTo int64) {
	if t.entry == nil {
		return
	}
	line := t.entry.line
	st := line.stretch
	if st.ticks == nil {
		return
	}
	var first, last, lost int64
	flush := func() {
		if lost > 0 {
			c.breachOf("G4", t.ref, first, c.keys.Entry(t.ref), "decided and without an outcome: %s, up to %s", count(lost, "tick"), stamp(instant(last)))
			c.stats.Undecided += lost
		}
		lost = 0
	}
	listTicks(st.ticks, st.start, upTo, func(at int64) bool {
		if st.paused(at) {
			return true
		}
		if line.outcomes[at] != nil {
			c.stats.Ticks++
			flush()
			return true
		}
		c.stats.Ticks++
		if lost == 0 {
			first = at
		}
		last = at
		lost++
		return true
	})
	flush()
	line.stretch.start = max(st.start, upTo)
}

// paused reports whether a tick fell into a pause that is over.
func (st stretch) paused(at int64) bool {
	return slices.ContainsFunc(st.pauses, func(p task.Pause) bool { return at > ms(p.Since) && !p.Over(instant(at)) })
}

// endTicks judges the ticks of a task's last stretch, and those that should have
// been decided by the end of the history.
func (c *checker) endTicks(t *tasked) {
	if t.entry == nil {
		return
	}
	c.endStretch(t, c.decided(t))
	line := t.entry.line
	c.endOwn(t)
	if c.opts.Until.IsZero() || line.stretch.ticks == nil {
		return
	}
	var first, open int64
	until := c.opts.Until.UnixMilli()
	listTicks(line.stretch.ticks, line.stretch.start, until, func(at int64) bool {
		if line.stretch.ticks.due(at) > until {
			return false
		}
		if open == 0 {
			first = at
		}
		open++
		return true
	})
	if open > 0 {
		c.stats.Ticks += open
		c.stats.Undecided += open
		c.breachOf("G16", t.ref, first, c.keys.Watermark(t.ref.Shard), "not decided: %s up to %s; the watermark is at %s",
			count(open, "tick"), stamp(c.opts.Until), describe(c.shard(t.ref.Shard).mark))
	}
}
