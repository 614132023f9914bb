package check

import (
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// lineage is a task by its uid: one name may have had several.
type lineage struct {
	ref      store.Ref
	uid      string
	outcomes map[int64]*run // what each tick came to
	stretch  stretch
	last     int64 // when its latest tick was decided, by the owner's clock
}

// stretch is a time in which a task's ticks are those of one schedule: one or
// several versions of its entry that do not differ in that.
type stretch struct {
	ticks  ticker // nil: paused or unreadable, so that there are none
	start  int64  // ticks after it are this stretch's
	rev    int64  // of the version that began it
	before ticker // of the stretch that it overwrote; nil: none

	// unseen is the watermark last committed without proof that its writer knew
	// of this stretch.
	unseen int64
}

// applyEntries applies changes of entries, and judges the ticks of those that
// they end (G4).
func (c *checker) applyEntries(d *delta) {
	for _, ref := range slices.SortedFunc(maps.Keys(d.entries), compareRefs) {
		ch, t, s := d.entries[ref], c.task(ref), c.shard(ref.Shard)
		if t.entry != nil && !ch.gone && !ch.bad && !d.specs[store.Ref{Namespace: ref.Namespace, Name: ref.Name}] {
			c.needCommit(d, ref, 0, ch.key, "an entry without its spec")
		}
		switch {
		case ch.gone:
			c.endStretch(t)
			t.entry = nil
		case t.entry == nil || (!ch.bad && t.entry.UID != ch.entry.UID):
			c.endStretch(t)
			c.beginTask(t, s, ch)
		default:
			c.nextVersion(t, s, ch)
		}
	}
}

// beginTask takes a new task, whose ticks begin after its from, or one of the
// first list, whose past cannot be judged.
func (c *checker) beginTask(t *tasked, s *shard, ch *entryChange) {
	t.entry = &entry{Entry: ch.entry, create: ch.create, mod: ch.mod}
	line := t.line(ch.entry.UID)
	t.entry.line = line
	line.stretch = stretch{ticks: c.ticksOf(t.ref, ch), start: t.entry.decided(t.ref, s.mark, s.markMod), rev: ch.mod}
}

// nextVersion takes a new version of an entry.
func (c *checker) nextVersion(t *tasked, s *shard, ch *entryChange) {
	old := *t.entry
	line := old.line
	if ch.bad {
		ch.entry, ch.entry.Paused = old.Entry, true
	}
	if ms(ch.entry.From) < ms(old.From) {
		c.breachOf("G5", t.ref, 0, ch.key, "from goes back from %s to %s", stamp(old.From.Time), stamp(ch.entry.From.Time))
	}
	next := &entry{Entry: ch.entry, create: ch.create, mod: ch.mod, line: line}
	if sameTicks(old.Entry, ch.entry) && (line.stretch.ticks == nil) == (ch.bad || ch.entry.Paused) {
		t.entry = next
		return
	}
	c.endStretch(t)
	t.entry = next
	decided := old.decided(t.ref, s.mark, s.markMod)
	line.stretch = stretch{
		ticks: c.ticksOf(t.ref, ch), start: max(ms(ch.entry.From), decided), rev: ch.mod,
		before: line.stretch.ticks, unseen: decided,
	}
	if line.stretch.ticks != nil {
		s.unproven[line] = true
	}
}

func sameTicks(a, b task.Entry) bool {
	return a.Paused == b.Paused && slices.Equal(a.Schedule, b.Schedule) && a.Timezone == b.Timezone &&
		a.DST == b.DST && a.Anchor.Equal(b.Anchor.Time)
}

func (t *tasked) line(uid string) *lineage {
	l := t.lines[uid]
	if l == nil {
		l = &lineage{ref: t.ref, uid: uid, outcomes: map[int64]*run{}}
		t.lines[uid] = l
	}
	return l
}

// ticksOf is the ticker of an entry; nil if it has no ticks.
func (c *checker) ticksOf(ref store.Ref, ch *entryChange) ticker {
	if ch.bad || ch.entry.Paused {
		return nil
	}
	t, own, err := newTicker(ch.entry)
	if err != nil {
		c.note("the schedule of %s cannot be read and has no ticks: %v", ref, err)
		return nil
	}
	if !own {
		c.note("the ticks of %q in %s are package schedule's word", []string(ch.entry.Schedule), ch.entry.Timezone)
	}
	return t
}

// endStretch judges the present stretch of a task: all of its ticks that are
// decided must have an outcome.
func (c *checker) endStretch(t *tasked) {
	if t.entry == nil {
		return
	}
	line, s := t.entry.line, c.shard(t.ref.Shard)
	st := line.stretch
	delete(s.unproven, line)
	if st.ticks == nil {
		return
	}
	upTo := t.entry.decided(t.ref, s.mark, s.markMod)
	var first, last, lost int64
	flush := func() {
		if lost > 0 {
			c.breachOf("G4", t.ref, first, c.keys.Entry(t.ref), "decided and without an outcome: %s, up to %s", count(lost, "tick"), stamp(instant(last)))
			c.stats.Undecided += lost
		}
		lost = 0
	}
	listTicks(st.ticks, st.start, upTo, func(at int64) bool {
		if line.outcomes[at] != nil {
			c.stats.Ticks++
			flush()
			return true
		}
		if st.excuses(at, c.opts.lag()) {
			c.note("ticks of %s right after its schedule changed were not decided, and need not be", t.ref)
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

// excuses reports whether a tick may be without an outcome because the owner
// may not have known of this stretch when its watermark passed the tick.
func (st stretch) excuses(at, lag int64) bool {
	return at <= st.unseen && at <= st.start+lag && (st.before == nil || !hasTick(st.before, at))
}

// endTicks judges the ticks of a task's last stretch, and those that should have
// been decided by the end of the history.
func (c *checker) endTicks(t *tasked) {
	if t.entry == nil {
		return
	}
	c.endStretch(t)
	line := t.entry.line
	if c.opts.Until.IsZero() || line.stretch.ticks == nil {
		return
	}
	var first, open int64
	listTicks(line.stretch.ticks, line.stretch.start, c.opts.Until.UnixMilli(), func(at int64) bool {
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
