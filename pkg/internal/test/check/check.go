package check

import (
	"fmt"
	"maps"
	"slices"
	"time"

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
	alerts     *alertJudge
	successes  *successJudge
	messages   *messageJudge
	boots      *bootJudge
	dependents *dependentJudge
	flows      *flowJudge
	restores   *restoreJudge

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
	retention := &retentionJudge{base, map[string]int{}}
	counters := &counterJudge{base}
	decisions := &decisionJudge{base}
	gaps := &gapJudge{judge: base, stats: stats}
	policies := &policyJudge{judge: base, fences: fences}
	flows := newFlowJudge(base, fences)
	restores := &restoreJudge{base}
	parts := &partJudge{judge: base, fences: fences, flows: flows}
	namespaces := newNamespaceJudge(base)
	requests := &requestJudge{base}
	alerts := newAlertJudge(base)
	attempts := &attemptJudge{judge: base, requests: requests, fences: fences, freezes: freezes, namespaces: namespaces, policies: policies, parts: parts}

	return &checker{
		findings: found, cluster: cluster, opts: &opts, stats: stats,
		decoder: &decoder{findings: found, cluster: cluster, keys: keys},

		fences: fences, placement: &placementJudge{judge: base}, retention: retention, ledger: newLedgerJudge(base, fences, stats), counters: counters, gaps: gaps,
		decisions: decisions, attempts: attempts,
		access:     &accessJudge{judge: base, records: map[string]accessRecord{}, pending: map[int64]*pendingRecord{}, written: map[string][]byte{}},
		namespaces: namespaces, alerts: alerts, successes: newSuccessJudge(base, alerts), messages: newMessageJudge(base), boots: newBootJudge(base),
		dependents: newDependentJudge(base, fences, stats),
		flows:      flows,
		restores:   restores,

		entries: &entryTracker{judge: base, fences: fences, counters: counters, retention: retention, gaps: gaps},
		runs: &runTracker{
			judge: base, stats: stats, fences: fences, decisions: decisions, lateness: &latenessJudge{base}, freezes: freezes, namespaces: namespaces,
			policies: policies, counters: counters, attempts: attempts, requests: requests, parts: parts, retention: retention, restores: restores,
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
	c.successes.advance(events[0].At)

	d := c.decoder.decodeEvents(events)
	c.successes.noteChanges(d, events)

	if events[0].Listed {
		c.applyFirstList(d, events[0].At)
		c.access.applyRecords(events)
		c.namespaces.applyRecords(events)
		c.boots.applyNamespaces(events)

		return
	}

	c.access.checkRevision(d, events)
	c.namespaces.checkSpecs(d)

	// Owners and watermarks are judged first, because they determine who may write the rest.
	c.fences.checkOwners(d)
	c.placement.checkMoves(d)
	c.fences.checkWatermarks(d)
	c.restores.checkNodes(d)

	// The transaction of an alert compares the records of its task as they were before the revision.
	c.alerts.checkRevision(d)
	c.messages.checkRevision(d)
	c.boots.checkRevision(d)
	c.dependents.checkRevision(d, events[0].At)

	runs := d.sortedRuns()
	for _, r := range runs {
		c.runs.applyRunChange(d, r)
	}

	// Overlap and limits depend on all runs that the revision starts or ends, so they are judged after every
	// run of the revision has been applied.
	c.runs.checkStarts(d, runs)
	c.flows.checkRevision(d)

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
	c.boots.applyNamespaces(events)
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
func (c *checker) applyFirstList(d *delta, at time.Time) {
	c.cluster.began = c.cluster.revision
	c.cluster.applyFreezes(d)
	c.alerts.applyChanges(d)
	c.messages.applyChanges(d)
	c.boots.applyChanges(d)
	c.dependents.applyListed(d, at)
	c.flows.applyListed(d)
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

	c.successes.noteList()
	c.placement.allowMisplaced()
}

// finishHistory checks the guarantees that can be judged only at the end of the history.
func (c *checker) finishHistory() {
	for _, ref := range slices.SortedFunc(maps.Keys(c.cluster.tasks), compareRefs) {
		t := c.cluster.tasks[ref]
		c.stats.Tasks += int64(len(t.incarnations))
		c.finishTask(t)
	}

	c.alerts.checkEnd()
	c.dependents.checkEnd()
	c.flows.checkEnd()
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

// judge holds what all judges share. A judge is responsible for one group of guarantees: it compares what a
// revision changes (a delta, or the part of it that concerns one run or entry) with the cluster as it was
// before, and reports each violation.
//
// A judge reads the cluster's state and never changes it. It keeps what it must remember for its own guarantees
// in its own fields.
type judge struct {
	// findings receives the violations and notes.
	*findings
	// cluster is the replayed state before the revision that is judged.
	cluster *clusterState
	// keys are the keys of the cluster, for the messages. opts is what the author of the history demands.
	keys record.Keys
	opts *Options
}

// findings collects what the judges report: violations and notes.
type findings struct {
	revision   int64 // the revision that is judged; violations are reported at it
	violations []Violation
	notes      map[string]int // each note, and how often it was made
}

// newFindings returns an empty collection.
func newFindings() *findings { return &findings{notes: map[string]int{}} }

// addViolation adds a violation at the current revision. promise is the number of a guarantee, such as "G3", or
// "state" or "form".
func (f *findings) addViolation(promise, key, format string, args ...any) {
	f.violations = append(f.violations, Violation{
		Promise: promise, Revision: f.revision, Key: key, Message: fmt.Sprintf(format, args...),
	})
}

// breachTask adds a violation that concerns a task, and a tick (in ms) unless it is 0.
func (f *findings) breachTask(promise string, ref record.Ref, tick int64, key, format string, args ...any) {
	f.addViolation(promise, key, format, args...)
	v := &f.violations[len(f.violations)-1]
	v.Task = ref.String()
	if tick != 0 {
		v.Tick = timeOfMS(tick)
	}
}

// addNote adds an observation that is not a violation: it limits what was judged, or deserves attention.
func (f *findings) addNote(format string, args ...any) { f.notes[fmt.Sprintf(format, args...)]++ }

// buildReport returns all findings, with the violations in the order of their revisions.
func (f *findings) buildReport(stats *stats) Report {
	r := Report{Violations: f.violations, Summary: stats.summarize()}
	for _, n := range slices.Sorted(maps.Keys(f.notes)) {
		if times := f.notes[n]; times > 1 {
			n = fmt.Sprintf("%s (%d times)", n, times)
		}
		r.Notes = append(r.Notes, n)
	}

	slices.SortStableFunc(r.Violations, func(a, b Violation) int { return int(a.Revision - b.Revision) })

	return r
}

// Acknowledged is a change that the API has acknowledged. The fields that are set determine its kind: a trigger of
// a run, a cancel of a run, a deletion of a task, or else a write of a task's spec.
type Acknowledged struct {
	Namespace, Name string
	// Revision is the task's revision in the answer to a create, an update, a pause or a resume: its spec was
	// written at that revision. With Deleted it is the last known revision before: the spec was deleted later.
	Revision int64
	UID      string // the task's uid; "" if it is not known
	Deleted  bool   // the task was deleted
	Run      string // the run that was triggered, or with Cancelled the run that was cancelled
	// Cancelled means that the run was asked to end, or had ended.
	Cancelled bool
}

// String describes the change for messages.
func (a Acknowledged) String() string {
	switch {
	case a.Cancelled:
		return "the cancel of run " + a.Run
	case a.Run != "":
		return "the trigger of run " + a.Run
	case a.Deleted:
		return fmt.Sprintf("the delete after revision %d", a.Revision)
	}

	return fmt.Sprintf("the change at revision %d", a.Revision)
}

// CheckAcknowledged checks that every acknowledged change is in the history (G13). The history must begin before
// the first of the calls.
func CheckAcknowledged(keys record.Keys, events []Event, calls []Acknowledged) []Violation {
	type write struct {
		key string
		rev int64
	}

	// Collect from the history everything that a call can have caused.
	specs := map[write]string{}   // the uid of each spec that was written
	deletes := map[string]int64{} // the latest deletion of each spec
	runs := map[string]bool{}     // runs that had any record, by task and id
	ends := map[string]bool{}     // runs that ended, or whose cancel was requested
	alive := map[string]string{}  // the uid of each spec that exists
	for _, ev := range events {
		if ns, name, ok := keys.ParseSpec(ev.Key); ok {
			if ev.Deleted {
				deletes[ev.Key] = ev.Revision
				delete(alive, ev.Key)
				continue
			}

			t, _ := record.DecodeTask(ev.Value, ev.ModRevision)
			alive[ev.Key], specs[write{keys.Spec(record.Ref{Namespace: ns, Name: name}), ev.ModRevision}] = t.UID, t.UID
			continue
		}

		// A run exists if any inbox, queue or history record of it was written. A cancel is visible as a request in
		// an inbox, or as the run's end.
		if k, ok := keys.ParseRun(ev.Key); ok && !ev.Deleted {
			a, _ := record.DecodeAssigned(k, ev.CreateRevision, ev.Value)
			id := k.Ref.String() + "/" + k.Run
			runs[id] = true
			ends[id] = ends[id] || a.CancelRequested
		}

		if k, ok := keys.ParseShard(ev.Key); ok && !ev.Deleted && k.Run != "" {
			id := k.Ref.String() + "/" + k.Run
			runs[id] = true
			ends[id] = ends[id] || k.Kind == record.KindEnded
		}
	}

	// Every call must have left its trace. Deleting a task also deletes its queue, so a cancel of a run of a
	// deleted task is fulfilled.
	var lost []Violation
	for _, a := range calls {
		ref := record.Ref{Namespace: a.Namespace, Name: a.Name}
		key, id := keys.Spec(ref), ref.String()+"/"+a.Run
		uid, written := specs[write{key, a.Revision}]
		gone := deletes[key] > 0 // the runs of a deleted task are deleted with it
		var there bool

		switch {
		case a.Cancelled:
			there = ends[id] || gone
		case a.Run != "":
			there = runs[id]
		// The spec was deleted after the last revision that the caller knew, and a spec that exists now belongs to
		// another task.
		case a.Deleted:
			there = deletes[key] > a.Revision && (a.UID == "" || alive[key] != a.UID)
		default:
			there = written && (a.UID == "" || uid == a.UID)
		}

		if !there {
			lost = append(lost, Violation{Promise: "G13", Revision: a.Revision, Key: key, Task: ref.String(),
				Message: a.String() + " was acknowledged but is not in the history"})
		}
	}

	return lost
}
