// Package check verifies Carillon's guarantees (G1 to G25, G27 to G29, G31, G57 to G59, G62 to G66 and G68, docs/guarantees.md) from outside: it reads what etcd
// stores, and never relies on what a daemon reports.
//
//	recorder ──▶ []Event ──▶ Check ──▶ Report: violations, notes, summary
//	probe log ─────────────▶ CheckProbeLog ──▶ []Violation
//	acknowledged calls ────▶ CheckAcknowledged ──▶ []Violation
//
// Check reads a history: every revision of the prefix, in order. It replays the cluster's records and checks the
// following at each revision:
//
//   - who may write (G1, G2)
//   - each tick is decided once (G3), and none is left out (G4)
//   - watermarks never move backward (G5)
//   - no tick is decided before it is due (G6)
//   - decisions follow the entry in force (G7)
//   - runs of a task do not overlap where the policy forbids it (G8)
//   - no attempt is retried unless the policy allows it; one that sent nothing does not count, but only for
//     unsent_for (G9)
//   - no attempt starts or ends without a record of intent (G10)
//   - fencing tokens increase (G11), and outcomes do not change (G12)
//   - frozen tasks do not start (G21)
//   - nothing starts after its start deadline (G22)
//   - each record of a run that did not succeed has a reason from the closed list (G23)
//   - limits, and the counts that an entry keeps, are exact (G24)
//   - the access records allowed each write that an audit record describes, and each change of them puts the fence (G27)
//   - nothing is written or starts that the record of its namespace forbids (G29)
//   - each record that a trim deletes from a history is in the ledger of its task in the same revision, once (G31)
//   - an alert opens only if its expectation is not met, and closes only if it is met or nothing is expected any more (G57)
//   - a receiver gets one message at a time, which contains only what is different at one revision, and three within six minutes, or one a minute with a run for each of ten alerts (G59)
//   - each end of a run becomes one trigger for each task that runs after it, before its record is trimmed (G63)
//   - each trigger is deleted together with one outcome, in order (G64)
//   - the parts of a workflow begin by the plan of its run, and its run ends as its steps say (G65)
//   - cleanup of a workflow runs to its end (G66)
//   - what a history may have decided that a restore has lost is not decided again (G68)
//   - a run's state and its pauses change only in legal steps ("state")
//   - records can be read ("form")
//
// Options enable further rules, which only the author of a history can demand: only the shards that must move do
// move (G15); no decision is late outside of faults (G15, G16, G19); all ticks up to a given time are decided
// (G16); nothing is left of drained nodes (G20); earlier versions, tombstones and dead runs are kept (G25); each
// change by the API has exactly one audit record (G28); no record leaves a history without a fold (G31). In calm periods,
// ends are sent within 20 s (G63), and when all runs have ended, none is unsent, no trigger waits, and no data of a run is left (G63, G64, G65). When all is
// quiet, tasks that fail have an alert, and no others; while tasks run without faults, those have one within a minute that do
// not succeed in time, and no others (G58).
//
// The deletion of a history record, by a trim, by a purge or together with its task, does not revoke the outcome:
// the checker has seen it. A record of ticks that did not run may grow by the ticks that follow its last one.
//
// How it works: decoder converts a revision to a delta. clusterState is the replay: the cluster as it was before
// that revision. Each judge compares the two for one group of guarantees (fenceJudge, placementJudge,
// decisionJudge, gapJudge, latenessJudge, freezeJudge, policyJudge, counterJudge, attemptJudge, partJudge,
// retentionJudge, ledgerJudge, accessJudge, namespaceJudge, alertJudge, successJudge, messageJudge, bootJudge,
// dependentJudge, flowJudge, restoreJudge) and reports to findings. Runs and entries can pass through several states in one revision, so runTracker
// and entryTracker apply these one by one and call the judges at each.
//
// The checker computes ticks with package oracle, which uses package schedule only for schedules that it does not
// support. The report counts those.
//
// The checker cannot see:
//
//   - Which process wrote a key. It infers the writer from the content: the owner that a run names, the instance
//     that a run is for. A commit that writes only a watermark names no writer. For such a commit the checker
//     verifies that the owner key and the key of the owner's node existed, and that the first commit under a new
//     fence or session opens the shard.
//   - What a missed policy or a selector should have chosen. It verifies that each tick has one outcome. For the
//     overlap policy it verifies that no runs overlap, not that each skip was necessary.
//   - Why a person has written a chunk of a ledger. It does not judge chunks that it cannot read, or that name a task
//     which it does not know.
//   - Damage by hand to the cursor of a source, or to a trigger. It does not judge records that it cannot read, nor the ends
//     that the repair of a cursor passes.
//   - Ticks at or before the watermark at which the recording began.
//   - Whether an alert about max_lateness or max_duration opens in time, and any alert while there are faults.
//   - Clocks. The owner reports created_at, and a node reports its starts, each by its own clock. A clock may be
//     wrong by Options.Skew.
//   - Processes. CheckProbeLog judges those.
//
// Package check does no I/O. Package recorder records the histories that tests judge. Package check is
// for tests and benchmarks; package audit checks a live cluster.
package check
