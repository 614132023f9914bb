package check

import (
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// Check judges a history: what was listed first, then every change of every
// later revision, in order, as Recorder.Events returns it. A history with a gap
// cannot be judged; Check reports the gaps that it can notice as "form".
func Check(keys record.Keys, events []Event, opts Options) Report {
	opts.Faults = sortFaults(opts.Faults)
	c := newChecker(keys, opts)

	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Revision == events[0].Revision && events[n].Listed == events[0].Listed {
			n++
		}

		c.applyRevision(events[:n])
		events = events[n:]
	}

	c.finishHistory()

	return c.findings.buildReport(c.stats)
}

// checker replays a history and has it judged, revision by revision:
//
//	events of one revision ──decoder──▶ delta
//	delta + clusterState (as it was before) ──judges──▶ findings
//	delta ──▶ clusterState (as it is after)
//
// Within a step the cluster's state is the one before the revision, as it is for
// the compares of a transaction, and the delta is what the revision changes. Runs
// and entries go through several records in one revision. Their trackers therefore
// apply each change themselves, and call the judges in between.
type checker struct {
	*findings
	cluster *clusterState
	opts    *Options
	stats   *stats
	decoder *decoder

	fences    *fenceJudge
	placement *placementJudge
	retention *retentionJudge
	counters  *counterJudge
	gaps      *gapJudge
	decisions *decisionJudge
	attempts  *attemptJudge

	entries *entryTracker
	runs    *runTracker
}

func newChecker(keys record.Keys, opts Options) *checker {
	found, cluster, stats := newFindings(), newClusterState(keys), newStats()
	base := judge{findings: found, cluster: cluster, keys: keys, opts: &opts}

	fences := &fenceJudge{base}
	freezes := &freezeJudge{base}
	retention := &retentionJudge{base}
	counters := &counterJudge{base}
	decisions := &decisionJudge{base}
	gaps := &gapJudge{judge: base, stats: stats}
	policies := &policyJudge{judge: base, fences: fences}
	parts := &partJudge{judge: base, fences: fences}
	attempts := &attemptJudge{judge: base, fences: fences, freezes: freezes, policies: policies, parts: parts}

	return &checker{
		findings: found, cluster: cluster, opts: &opts, stats: stats,
		decoder: &decoder{findings: found, cluster: cluster, keys: keys},

		fences: fences, placement: &placementJudge{judge: base}, retention: retention, counters: counters, gaps: gaps,
		decisions: decisions, attempts: attempts,

		entries: &entryTracker{judge: base, fences: fences, counters: counters, retention: retention, gaps: gaps},
		runs: &runTracker{
			judge: base, stats: stats, fences: fences, decisions: decisions, lateness: &latenessJudge{base}, freezes: freezes,
			policies: policies, counters: counters, attempts: attempts, parts: parts, retention: retention,
		},
	}
}

// applyRevision judges and applies the changes of one revision, or the first list.
func (c *checker) applyRevision(events []Event) {
	if events[0].Revision < c.revision || (events[0].Listed && c.revision > 0) {
		c.addViolation("form", events[0].Key, "the history goes back to revision %d", events[0].Revision)
	}

	c.setRevision(events[0].Revision)
	c.checkKeys(events)

	d := c.decoder.decodeEvents(events)

	if events[0].Listed {
		c.applyFirstList(d)
		return
	}

	// The owners and watermarks come first: they say who may write the rest.
	c.fences.checkOwners(d)
	c.placement.checkMoves(d)
	c.fences.checkWatermarks(d)

	runs := d.sortedRuns()
	for _, r := range runs {
		c.runs.applyRunChange(d, r)
	}

	c.runs.checkStarts(runs)

	c.retention.checkRevision(d)
	c.entries.applyEntries(d)
	c.cluster.applyKept(d)
	c.retention.checkKept(d)
	c.cluster.applyFreezes(d)
	c.cluster.applyWatermarks(d)
	c.cluster.applyFleet(d)
	c.placement.forgetUnusedMoves(d)
}

func (c *checker) setRevision(revision int64) {
	c.findings.revision, c.cluster.revision = revision, revision
}

// checkKeys checks that each event follows from what is known of its key, as
// it does in a history without gaps.
func (c *checker) checkKeys(events []Event) {
	for _, ev := range events {
		created, known := c.cluster.liveKeys[ev.Key]
		switch {
		case ev.Listed:
		case ev.Deleted && !known:
			c.addViolation("form", ev.Key, "the key is deleted, and was not there: the history has a gap")
		case !ev.Deleted && ev.CreateRevision != created && ev.CreateRevision != ev.Revision:
			c.addViolation("form", ev.Key, "the key was created at revision %d, which this history does not show", ev.CreateRevision)
		case known && ev.CreateRevision == ev.Revision:
			c.addViolation("form", ev.Key, "the key is created anew while it is there: the history has a gap")
		}

		if ev.Deleted {
			delete(c.cluster.liveKeys, ev.Key)
		} else {
			c.cluster.liveKeys[ev.Key] = ev.CreateRevision
		}
	}
}

// applyFirstList takes the first list as it is.
func (c *checker) applyFirstList(d *delta) {
	c.cluster.began = c.cluster.revision
	c.cluster.applyFreezes(d)
	c.cluster.applyKept(d)
	c.retention.checkKept(d)
	c.cluster.applyFleet(d)
	c.cluster.applyListedWatermarks(d)
	c.entries.applyEntries(d)

	for _, r := range d.sortedRuns() {
		c.runs.applyListed(r)
	}

	c.placement.allowMisplaced()
}

// finishHistory judges what only the end of the history can tell.
func (c *checker) finishHistory() {
	for _, ref := range slices.SortedFunc(maps.Keys(c.cluster.tasks), compareRefs) {
		t := c.cluster.tasks[ref]
		c.stats.Tasks += int64(len(t.incarnations))
		c.finishTask(t)
	}

	c.placement.checkEndOwners()
	c.placement.checkDrainedNodes()
}

// finishTask judges the ticks and runs of a task as the history leaves them.
func (c *checker) finishTask(t *taskHistory) {
	if t.entry != nil {
		c.gaps.checkDecided(t, c.cluster.decidedUpTo(t))
		c.counters.checkEnd(t)
		c.gaps.checkEnd(t)
	}

	c.runs.checkEnd(t)
}
