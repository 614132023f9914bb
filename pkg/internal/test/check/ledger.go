package check

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ledgerJudge judges that a trim forgets nothing (G31). A record that leaves the history of a task that exists is in the
// task's ledger in the same revision, once:
//
//   - What the written chunks count, less what the chunks that they replace counted, equals the deleted records, by what
//     became of them.
//   - The written chunks name or count the tick of each deleted record, and all that the replaced chunks named or counted.
//     They name nothing else.
//   - A span of successes does not extend over a tick of the present schedule that neither the ledger nor the history
//     tells.
//   - The newest chunk says that records are deleted without being counted, and up to which tick older chunks or such
//     records are gone.
//   - Only the newest chunk is rewritten. A chunk goes after all older ones, because of its age, because there are too
//     many, because the task is to have no ledger, or with the task.
//
// A record may go without a trace if the task has no ledger (history.ledger, or the setting or the limit of the cluster),
// or if etcd was full. The owner knows these settings by its watch, which may be late, and a trim may have to wait. So they
// may be any that were in force within ledgerLag before.
//
// The judge does not use ledger.Fold. It reads chunks by package ledger, and compares them with the runs that it has seen.
type ledgerJudge struct {
	judge
	fences *fenceJudge
	stats  *stats

	clusters []clusterSettings            // the settings of the cluster, the oldest first; the last is in force
	settings map[record.Ref]*taskSettings // by task
	latest   int64                        // the latest time up to which ticks are decided, in ms: about the time of the revision
}

// ledgerLag is how long an owner may use settings that were replaced. See namespaceLag.
const ledgerLag = 30 * time.Second

// maxChunkBytes limits a chunk. It is well above ledger.ChunkSize, because the record that fills a chunk may be long.
const maxChunkBytes = 4 * ledger.ChunkSize

// clusterSettings is a version of the cluster's record.
type clusterSettings struct {
	task.Cluster
	until int64 // when it was replaced, in ms; 0: it is in force
}

// taskSettings is what the judge must know of the entries of a task.
type taskSettings struct {
	ledgers []ledgerSetting // the values of history.ledger, the oldest first; the last is in force
	entry   task.Entry      // the entry that is in force
	since   int64           // since when its schedule is in force, in ms
}

// ledgerSetting is a value of history.ledger of a task.
type ledgerSetting struct {
	ledger *task.Duration // nil: the cluster's
	until  int64          // when it was replaced, in ms; 0: it is in force
}

func newLedgerJudge(base judge, fences *fenceJudge, stats *stats) *ledgerJudge {
	return &ledgerJudge{
		judge: base, fences: fences, stats: stats, clusters: []clusterSettings{{}}, settings: map[record.Ref]*taskSettings{},
	}
}

// trimmedRecord is a record of a run or of ticks that a revision deletes from a history.
type trimmedRecord struct {
	run        *runHistory // nil if it is unreadable
	id         string
	key        string
	lateResult bool // a late result of the run is deleted, too
}

// checkRevision judges what a revision deletes from histories, and what it writes to ledgers.
func (j *ledgerJudge) checkRevision(d *delta) {
	for _, ref := range slices.SortedFunc(maps.Keys(d.ledgers), compareRefs) {
		t, ch := j.cluster.taskOf(ref), d.ledgers[ref]
		after := d.entries[ref]
		if t.entry == nil || after != nil && (after.deleted || after.entry.UID != t.entry.UID) {
			j.checkWithoutTask(t, ch)
			continue
		}

		trimmed := j.trimmedRecords(t, ch)
		written := j.writtenChunks(t, ch)
		j.checkDeletedChunks(t, ch, written)

		if len(written) > 0 {
			j.checkOrder(t, written)
			j.checkFold(d, t, trimmed, written)
		} else if len(trimmed) > 0 {
			j.checkForgotten(t, trimmed)
		}
	}

	j.checkDeletedTasks(d)
	j.applySettings(d)
}

// checkWithoutTask checks that no chunk is written for a task that does not exist.
func (j *ledgerJudge) checkWithoutTask(t *taskHistory, ch *ledgerChange) {
	for _, c := range ch.chunks {
		if c.state != nil && c.state.readable && t.incarnations[c.state.UID] != nil {
			j.breachTask("G31", t.ref, 0, c.key, "a chunk is written, but the task does not exist (uid %s)", c.state.UID)
		}
	}
}

// trimmedRecords returns the records of the present task that a revision deletes.
func (j *ledgerJudge) trimmedRecords(t *taskHistory, ch *ledgerChange) []trimmedRecord {
	late := map[string]bool{}
	for _, r := range ch.deleted {
		if r.late {
			late[r.run] = true
		}
	}

	var trimmed []trimmedRecord
	for _, r := range ch.deleted {
		h := t.runs[r.run]
		if r.unreadable || h != nil && !h.ended {
			h = nil
		}

		switch {
		case r.late:
		case h == nil && task.RunBelongs(r.run, t.entry.UID), h != nil && h.incarnation == t.entry.incarnation:
			trimmed = append(trimmed, trimmedRecord{run: h, id: r.run, key: r.key, lateResult: late[r.run]})
		}
	}

	slices.SortFunc(trimmed, func(a, b trimmedRecord) int { return cmp.Compare(a.id, b.id) })

	return trimmed
}

// writtenChunks returns the chunks of the present task that a revision writes. Others are written by people only.
func (j *ledgerJudge) writtenChunks(t *taskHistory, ch *ledgerChange) (written []writtenChunk) {
	for _, c := range ch.chunks {
		switch {
		case c.state == nil:
		case !c.state.readable:
			j.addNote("a chunk of the ledger of %s cannot be read", t.ref)
		case c.state.UID != t.entry.UID && t.incarnations[c.state.UID] != nil:
			j.breachTask("G31", t.ref, 0, c.key, "a chunk of an earlier task of that name is written (uid %s)", c.state.UID)
		case c.state.UID != t.entry.UID:
			j.addNote("a chunk of the ledger of %s is that of another task", t.ref)
		default:
			written = append(written, writtenChunk{id: c.id, key: c.key, now: c.state, before: t.chunks[c.id]})
		}
	}

	slices.SortFunc(written, func(a, b writtenChunk) int { return cmp.Compare(a.id, b.id) })

	return written
}

// checkForgotten judges a revision that deletes records without a fold.
func (j *ledgerJudge) checkForgotten(t *taskHistory, trimmed []trimmedRecord) {
	var tick int64
	if trimmed[0].run != nil {
		tick = trimmed[0].run.tick
	}

	if !j.opts.Folded || j.opts.Full || j.shortestLedger(t) == 0 {
		j.stats.Unfolded += int64(len(trimmed))

		isNoted := false
		for _, c := range t.chunks {
			isNoted = isNoted || c.readable && c.UID == t.entry.UID && (c.Uncounted || c.Gone.UnixMilli() >= tick)
		}
		if j.opts.Folded && !j.opts.Full && !isNoted {
			j.breachTask("G31", t.ref, tick, trimmed[0].key, "%s deleted without being counted, and the ledger does not say so", formatCount(int64(len(trimmed)), "record"))
		}

		return
	}

	j.breachTask("G31", t.ref, tick, trimmed[0].key, "%s deleted from the history, and the revision writes no chunk of the ledger",
		formatCount(int64(len(trimmed)), "record"))
}

// shortestLedger returns the shortest time, in ms, for which the ledger of a task may have to remember ticks, by the
// settings that an owner may use.
func (j *ledgerJudge) shortestLedger(t *taskHistory) int64 {
	since := j.latest - ledgerLag.Milliseconds() - 2*j.opts.Skew.Milliseconds()
	shortest := task.MaxLedger

	ledgers := []ledgerSetting{{}}
	if s := j.settings[t.ref]; s != nil {
		ledgers = s.ledgers
	}

	for _, c := range j.clusters {
		if c.until != 0 && c.until < since {
			continue
		}

		for _, s := range ledgers {
			if s.until != 0 && s.until < since {
				continue
			}

			effective := task.Duration(task.History{Ledger: s.ledger}.EffectiveLedger(c.LedgerSetting()))
			shortest = min(shortest, c.LimitLedger(effective))
		}
	}

	return shortest.Std().Milliseconds()
}

// checkOrder checks that only the newest chunk is rewritten, and that new ones follow all others.
func (j *ledgerJudge) checkOrder(t *taskHistory, written []writtenChunk) {
	// A chunk that a person has written since the fold read the ledger does not count.
	var newest string
	for id, c := range t.chunks {
		if c.readable && c.UID == t.entry.UID {
			newest = max(newest, id)
		}
	}

	for _, w := range written {
		wrong := func(format string, args ...any) { j.breachTask("G31", t.ref, 0, w.key, format, args...) }
		if w.id < newest {
			wrong("the chunk is written, but %s is newer", newest)
		}

		if w.now.size > maxChunkBytes {
			wrong("the chunk has %d bytes", w.now.size)
		}

		if err := w.now.inconsistency(); err != "" {
			wrong("the chunk contradicts itself: %s", err)
		}

		if w.before == nil {
			continue
		}

		if w.before.Uncounted && !w.now.Uncounted && w.now.Gone.IsZero() {
			wrong("the chunk does not say any more that records were deleted without being counted")
		}
		if w.before.Gone.After(w.now.Gone.Time) && w.id == written[len(written)-1].id {
			wrong("the chunk does not say any more which ticks are gone")
		}

		switch {
		case !w.before.readable || !w.before.whole:
			wrong("the chunk is rewritten, although it contained something that this version does not know")
		case w.before.UID != w.now.UID || !w.before.From.IsZero() && !w.before.From.Equal(w.now.From.Time):
			wrong("the chunk is overwritten with another one")
		}
	}
}

// checkDeletedChunks judges the chunks of a task that a revision deletes although the task exists.
func (j *ledgerJudge) checkDeletedChunks(t *taskHistory, ch *ledgerChange, written []writtenChunk) {
	gone := map[string]string{} // keys by id
	for _, c := range ch.chunks {
		if c.state == nil {
			gone[c.id] = c.key
		}
	}

	kept := len(t.chunks) - len(gone)
	for _, w := range written {
		if w.before == nil {
			kept++
		}
	}

	shortest, remains := j.shortestLedger(t), ""
	for _, id := range slices.Sorted(maps.Keys(t.chunks)) {
		c := t.chunks[id]
		if c == nil || !c.readable || c.UID != t.entry.UID {
			continue
		}

		key, deleted := gone[id]
		isNoted := slices.ContainsFunc(written, func(w writtenChunk) bool { return w.now.Uncounted || w.now.Gone.UnixMilli() >= c.lastTick() })
		if deleted && !isNoted && !j.opts.Full {
			j.breachTask("G31", t.ref, 0, key, "the chunk is deleted, but the ledger does not say that its ticks up to %s are gone", formatTime(timeOfMS(c.lastTick())))
		}

		switch {
		case !deleted:
			remains = cmp.Or(remains, id)
		case remains != "":
			j.breachTask("G31", t.ref, 0, key, "the chunk is deleted, but %s is older and remains", remains)
		case shortest == 0 || kept >= ledger.MaxChunks:
		case c.lastTick()+shortest > j.latest+(ledgerLag/6).Milliseconds()+2*j.opts.Skew.Milliseconds():
			j.breachTask("G31", t.ref, 0, key, "the chunk is deleted, although its last tick, %s, is to be remembered for %s, and only %d chunks remain",
				formatTime(timeOfMS(c.lastTick())), durationOfMS(shortest), kept)
		}
	}
}

// checkDeletedTasks checks that the ledger of a task is deleted together with the task.
func (j *ledgerJudge) checkDeletedTasks(d *delta) {
	for ref, e := range d.entries {
		spec := d.specs[withoutShard(ref)]
		if !e.deleted || spec == nil || spec.value != nil || !j.opts.Remembered {
			continue
		}

		left := maps.Clone(j.cluster.taskOf(ref).chunks)
		if ch := d.ledgers[ref]; ch != nil {
			for _, c := range ch.chunks {
				delete(left, c.id)
			}
		}

		if len(left) > 0 {
			j.breachTask("G31", ref, 0, j.keys.LedgerOf(ref), "the task is deleted, but %s of its ledger remain", formatCount(int64(len(left)), "chunk"))
		}
	}
}

// applySettings applies the time of a revision, and the settings that it changes.
func (j *ledgerJudge) applySettings(d *delta) {
	for _, m := range d.watermarks {
		if !m.deleted && !m.unreadable {
			j.latest = max(j.latest, m.watermark.Time.UnixMilli())
		}
	}

	if d.cluster != nil {
		j.clusters[len(j.clusters)-1].until = j.latest
		j.clusters = append(j.clusters, clusterSettings{Cluster: *d.cluster})
	}

	for ref, e := range d.entries {
		if !e.deleted && !e.unreadable {
			// After an outage, an owner may decide many ticks of a task before it moves the watermark.
			j.latest = max(j.latest, e.entry.From.UnixMilli())
			j.applyEntry(ref, e.entry)
		}
	}
}

// applyEntry applies a new version of an entry.
func (j *ledgerJudge) applyEntry(ref record.Ref, e task.Entry) {
	s := j.settings[ref]
	if s == nil || s.entry.UID != e.UID {
		s = &taskSettings{since: j.latest}
		j.settings[ref] = s
	}

	if n := len(s.ledgers); n == 0 || !equalDurations(s.ledgers[n-1].ledger, e.History.Ledger) {
		if n > 0 {
			s.ledgers[n-1].until = j.latest
		}
		s.ledgers = append(s.ledgers, ledgerSetting{ledger: e.History.Ledger})
	}

	if !s.entry.Timing().Same(e.Timing()) || !s.entry.Anchor.Equal(e.Anchor.Time) {
		s.since = j.latest
	}

	s.entry = e
}

// equalDurations reports whether two settings are equal; nil is one that is not set.
func equalDurations(a, b *task.Duration) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}
