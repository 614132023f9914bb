// Package check judges a cluster from outside: the promises of Carillon as a
// checker over what etcd holds, and never over a daemon's word.
//
//	Recorder ──▶ []Event ──▶ Check ──▶ Report: violations, notes, summary
//	one list ──▶ []Event ──▶ Snapshot ──▶ Report
//	probe log ─────────────▶ CheckProbeLog ──▶ []Violation
//	acknowledged calls ────▶ CheckAcknowledged ──▶ []Violation
//
// Check reads a history: every revision of the prefix, in order. It replays the
// cluster's records and asks at each revision what the promises ask: who may
// write (G1, G2), one decision per tick (G3), no tick without one (G4),
// watermarks that never go back (G5), nothing early (G6), the entry's word (G7),
// no overlap (G8), no retry that nobody wants (G9), no start or end without a
// record of intent (G10), tokens that grow (G11), outcomes that stay (G12), all
// decided by a given time (G16), and, where Options ask for it, that no more
// shards move than must (G15), that nothing is late but where faults were (G15,
// G16, G19), and that nothing is left of drained nodes (G20). Of the policies:
// what is frozen does not start (G21), nothing starts after its start deadline
// (G22), each record that is no success says why, in a word of the closed list
// (G23), limits and an entry's own counts are exact (G24), and, if asked, that
// what is to be remembered is (G25). Then the legal steps of a run's state
// and of its pauses ("state"), and records that can be read ("form"). Deletes of history, by trims,
// purges or with a task, take no outcome back: the checker has seen it. A record
// of ticks that did not run may grow, by the ticks that follow it.
//
// How it is built: decoder turns a revision into a delta; clusterState is the replay, the
// cluster as it was before that revision; each judge compares the two for one group of
// promises (fenceJudge, placementJudge, decisionJudge, gapJudge, latenessJudge, freezeJudge,
// policyJudge, counterJudge, attemptJudge, partJudge, retentionJudge) and reports to
// findings. Runs and entries pass through several states in one revision: runTracker and
// entryTracker apply these one by one, and call the judges at each.
//
// The ticks come from an oracle of its own (see ticks.go); schedules that it
// does not know are left to package schedule, and the report says how many.
//
// What it cannot see:
//
//   - Which process wrote. A writer is known only by what it wrote: the owner
//     named in a run, the instance that a run is for. A commit that writes
//     nothing but a watermark could be anyone's; what shows is whether the owner
//     key and its node's key stood there, and whether the first commit under a
//     new fence or session is an opening one, as it has to be.
//   - What a missed policy or a selector should have chosen, only that each tick
//     got one outcome; nor if skipping was right, only that overlap never was.
//   - Ticks at or before the watermark at which the recording began.
//   - Clocks: created_at is the owner's word, and what a node says of its starts is told by
//     its clock, which may jump by Options.Skew.
//   - Anything in processes; the probe log is for that.
//
// check observes etcd from outside, and only reads. Recorder therefore reads through the etcd client itself, as
// no package above store may that takes part in the cluster: store shows what is there now, the checker
// needs each revision. It is for tests and benchmarks; package audit looks at a cluster that lives.
package check
