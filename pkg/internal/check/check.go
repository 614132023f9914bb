package check

import (
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// Check judges a history: the first list, then every change of every later revision, in order, as package recorder
// records it. A history with a gap cannot be judged. Check reports the gaps that it detects as "form".
func Check(keys record.Keys, events []Event, opts Options) Report {
	opts.Faults = sortFaults(opts.Faults)
	c := newChecker(keys, opts)

	// One step covers all events of one revision, or the whole first list. etcd applies the writes of a
	// transaction at one revision, so that a transaction is never split between two steps.
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

// checker replays a history revision by revision and calls the judges:
//
//	events of one revision ──decoder──▶ delta
//	delta + clusterState (before the revision) ──judges──▶ findings
//	delta ──▶ clusterState (after the revision)
//
// While the judges run, clusterState shows the cluster before the revision, which is what the compares of a
// transaction see. The delta holds what the revision changes. A revision can write several records of one run
// or entry. Their trackers therefore apply each change themselves, and call the judges in between.
type checker struct {
	*findings
	// cluster is the replayed state. All judges share it.
	cluster *clusterState
	opts    *Options
	stats   *stats // the numbers for the report
	// decoder converts events to deltas.
	decoder *decoder

	// The judges that applyRevision and finishHistory call directly. The trackers call the others.
	fences     *fenceJudge
	placement  *placementJudge
	retention  *retentionJudge
	ledger     *ledgerJudge
	counters   *counterJudge
	gaps       *gapJudge
	decisions  *decisionJudge
	attempts   *attemptJudge
	access     *accessJudge
	namespaces *namespaceJudge

	// The trackers apply the changes of entries and of runs.
	entries *entryTracker
	runs    *runTracker
}

// newChecker wires the judges and trackers to one clusterState, one set of findings and one set of options.
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
	namespaces := newNamespaceJudge(base)
	requests := &requestJudge{base}
	attempts := &attemptJudge{judge: base, requests: requests, fences: fences, freezes: freezes, namespaces: namespaces, policies: policies, parts: parts}

	return &checker{
		findings: found, cluster: cluster, opts: &opts, stats: stats,
		decoder: &decoder{findings: found, cluster: cluster, keys: keys},

		fences: fences, placement: &placementJudge{judge: base}, retention: retention, ledger: newLedgerJudge(base, fences, stats), counters: counters, gaps: gaps,
		decisions: decisions, attempts: attempts,
		access:     &accessJudge{judge: base, records: map[string]accessRecord{}, pending: map[int64]*pendingRecord{}, written: map[string][]byte{}},
		namespaces: namespaces,

		entries: &entryTracker{judge: base, fences: fences, counters: counters, retention: retention, gaps: gaps},
		runs: &runTracker{
			judge: base, stats: stats, fences: fences, decisions: decisions, lateness: &latenessJudge{base}, freezes: freezes, namespaces: namespaces,
			policies: policies, counters: counters, attempts: attempts, requests: requests, parts: parts, retention: retention,
		},
	}
}

// applyRevision judges and applies the events of one revision, or of the first list.
//
// The order of the steps matters. Runs are judged before entries, so that they are compared with the entry that
// was in force before the revision. Freezes, watermarks, nodes and owners are applied last for the same reason.
func (c *checker) applyRevision(events []Event) {
	if events[0].Revision < c.revision || (events[0].Listed && c.revision > 0) {
		c.addViolation("form", events[0].Key, "the history goes back from here to revision %d", events[0].Revision)
	}

	c.setRevision(events[0].Revision)
	c.checkKeys(events)

	d := c.decoder.decodeEvents(events)

	if events[0].Listed {
		c.applyFirstList(d)
		c.access.applyRecords(events)
		c.namespaces.applyRecords(events)

		return
	}

	c.access.checkRevision(d, events)
	c.namespaces.checkSpecs(d)

	// Owners and watermarks are judged first, because they determine who may write the rest.
	c.fences.checkOwners(d)
	c.placement.checkMoves(d)
	c.fences.checkWatermarks(d)

	runs := d.sortedRuns()
	for _, r := range runs {
		c.runs.applyRunChange(d, r)
	}

	// Overlap and limits depend on all runs that the revision starts or ends, so they are judged after every
	// run of the revision has been applied.
	c.runs.checkStarts(d, runs)

	c.retention.checkRevision(d)
	c.ledger.checkRevision(d)
	c.entries.applyEntries(d)

	// checkRevision compares with the records that were kept before, checkKept counts those that are kept now.
	c.cluster.applyKept(d)
	c.retention.checkKept(d)
	c.cluster.applyLedgers(d)
	c.cluster.applyFreezes(d)
	c.cluster.applyWatermarks(d)
	c.cluster.applyFleet(d)
	c.placement.forgetUnusedMoves(d)
	c.namespaces.applyRecords(events)
}

// setRevision sets the revision at which violations are reported and changes are applied.
func (c *checker) setRevision(revision int64) {
	c.findings.revision, c.cluster.revision = revision, revision
}

// checkKeys checks that each event follows from the known state of its key. A violation means that the history
// has a gap: a key is deleted that did not exist, or its create revision is not in the history.
func (c *checker) checkKeys(events []Event) {
	for _, ev := range events {
		created, known := c.cluster.liveKeys[ev.Key]
		switch {
		case ev.Listed:
		case ev.Deleted && !known:
			c.addViolation("form", ev.Key, "the key is deleted but did not exist: the history has a gap")
		case !ev.Deleted && ev.CreateRevision != created && ev.CreateRevision != ev.Revision:
			c.addViolation("form", ev.Key, "the key was created at revision %d, which this history does not show", ev.CreateRevision)
		case known && ev.CreateRevision == ev.Revision:
			c.addViolation("form", ev.Key, "the key is created although it exists: the history has a gap")
		}

		if ev.Deleted {
			delete(c.cluster.liveKeys, ev.Key)
		} else {
			c.cluster.liveKeys[ev.Key] = ev.CreateRevision
		}
	}
}

// applyFirstList applies the first list without judging how its records were written, which a list does not
// show. Entries come before runs, because the ticks of a range record are computed from its task's schedule.
func (c *checker) applyFirstList(d *delta) {
	c.cluster.began = c.cluster.revision
	c.cluster.applyFreezes(d)
	c.cluster.applyKept(d)
	c.retention.checkKept(d)
	c.ledger.applySettings(d)
	c.cluster.applyLedgers(d)
	c.cluster.applyFleet(d)
	c.cluster.applyListedWatermarks(d)
	c.entries.applyEntries(d)

	for _, r := range d.sortedRuns() {
		c.runs.applyListed(r)
	}

	c.placement.allowMisplaced()
}

// finishHistory checks the guarantees that can be judged only at the end of the history.
func (c *checker) finishHistory() {
	for _, ref := range slices.SortedFunc(maps.Keys(c.cluster.tasks), compareRefs) {
		t := c.cluster.tasks[ref]
		c.stats.Tasks += int64(len(t.incarnations))
		c.finishTask(t)
	}

	c.placement.checkEndOwners()
	c.placement.checkDrainedNodes()
	c.access.finish()
}

// finishTask judges the ticks and runs of a task in their final state. checkDecided must come before
// gaps.checkEnd: it moves the start of the epoch to the last decided tick, and checkEnd judges the rest.
func (c *checker) finishTask(t *taskHistory) {
	if t.entry != nil {
		c.gaps.checkDecided(t, c.cluster.decidedUpTo(t))
		c.counters.checkEnd(t)
		c.gaps.checkEnd(t)
	}

	c.runs.checkEnd(t)
}
