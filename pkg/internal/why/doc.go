// Package why explains why a task ran, did not run, or will run at a time.
//
// The package is pure. Facts contain the records, which were read at one revision. A Question is about an
// instant, a local time, a range, or the latest tick. For computes an Answer with a sentence and its evidence.
// The package has no clock and no network, and it does not guess. It reports which records no longer exist, and
// answers as far as the others allow.
//
// For an instant it proceeds as follows:
//
//	outcome on record, or named in the ledger? ──► its state and its reason
//	│ no
//	version in force then? ──► none: there was no task; not on record: forgotten
//	│ a tick of it?      ────► no: the nearest ticks, the gap, the pause
//	│ yes
//	decided? (from, watermark) ─► no: undecided, and what prevents the decision
//	│ yes
//	counted in the ledger? ──► succeeded, if each tick of that time has an outcome; otherwise what is counted
//	│ no
//	trimmed, or not read? ──► forgotten
//	│ no: history and ledger are complete at that time
//	changed before it was decided? ─► overtaken
//
// For a future time, it uses the version in force now, and checks the current pause, freeze, nodes and counts.
package why
