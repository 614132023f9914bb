// Package mutant breaks Carillon's protocol on purpose. A checker that never
// fails proves nothing: each of these mutants, put under a cluster of real nodes,
// must be caught by the simulation (TestMutants_AreCaught of package sim).
//
// A mutant lives between a node and its etcd: it decorates the KV, Watcher and
// Lease of the node's client (see package etcdhook), takes comparisons out of
// transactions, forges answers, loses events. The product has no switch that a
// mutant turns. What is not the client's to break is broken by what it shows the
// node, or makes of what the node writes:
//
//	no fence compare         no-owner-fence, no-session-fence, no-term-compare
//	no watermark compare     no-watermark-compare
//	start before commit      start-before-commit: a node is told of attempts that are not written
//	error = not applied      error-is-nothing; and its contrary, error-is-done
//	lost_after = 0           cleared-unseen: proof of death is all that shortens the wait
//	Next(t) = t              tick-again: what was decided lies after the watermark
//	watch without reconcile  deaf-watches: events lost, and the lists that would show it refused
//	conflicts in a request   conflicts-together
//	open without its commit  open-without-commit: a read takes its place
//
// It is for tests.
package mutant

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// Mutant is one rule of the protocol, broken.
type Mutant struct {
	Name string
	// Breaks is the rule, in a sentence.
	Breaks string
	// New returns what breaks the rule in the clients of one cluster's nodes. It
	// is called for each client before the node uses it.
	New func(keys record.Keys) func(node string, c *clientv3.Client)
}

// All are the mutants, in the order of the rules in docs/guarantees.md.
var All = []Mutant{
	{"no-owner-fence", "commits do not compare the owner key", without(ownerFence)},
	{"no-session-fence", "commits do not compare the own node's key", without(sessionFence)},
	{"no-watermark-compare", "commits do not compare the watermark", without(watermarkKnown)},
	{"no-entry-compare", "commits do not compare the entries that they decide for", without(entryKnown)},
	{"no-queue-compare", "a waiting run is taken whether or not it is still there", without(queueKnown)},
	{"no-run-compare", "ends, adoptions and cancels do not compare the attempt's record", without(runKnown)},
	{"no-term-compare", "a leader writes owners whether or not it still leads", noTerm},
	{"open-without-commit", "a worker opens its shard by a read", openByRead},
	{"seen-ahead", "the watermark claims to have seen what the owner has not", transactions(seenAhead)},
	{"tick-again", "the watermark is set before the ticks that a commit decides", transactions(tickAgain)},
	{"adoption-forged", "an adoption counts as done though the record has changed: a hand-back of unknown outcome may have been applied", adoptionForged},
	{"error-is-nothing", "an unknown outcome is taken for a write that did not take place", errorIsNothing},
	{"error-is-done", "an unknown outcome is taken for a success", errorIsDone},
	{"no-freezes-compare", "commits do not compare the record of freezes", without(freezesKnown)},
	{"no-revised-compare", "commits that move the watermark do not compare which edits gave tasks new ticks", without(revisedKnown)},
	{"edit-unrevised", "edits that give a task new ticks do not say so", transactions(unrevised)},
	{"run-uncounted", "an entry forgets the run that its commit counts", transactions(runUncounted)},
	{"range-short", "a record of ticks that did not run is one tick short when it grows", transactions(rangeShort)},
	{"nothing-kept", "former versions of tasks, and dead runs, are not kept", transactions(nothingKept)},
	{"no-parent-compare", "a part is tried again whether or not its run is to end", without(parentKnown)},
	{"part-again", "a run goes on to say that a part is left which its commit gives out", transactions(partAgain)},
	{"part-astray", "a run says of its parts that they are for other nodes than they go to", transactions(partAstray)},
	{"part-untold", "the record of a run's end leaves a part out", transactions(partUntold)},
	{"rule-bent", "a run with too few successful parts is recorded as succeeded", transactions(ruleBent)},
	{"stale-scan", "active runs are scanned as they were before the shards were opened", staleScan},
	{"anyones-attempt", "a node starts attempts that were meant for another instance", anyonesAttempt},
	{"cleared-unseen", "every absent instance counts as proved dead: nothing waits for lost_after", clearedUnseen},
	{"present-lost-after", "an owner waits for as long as the cluster's lost_after says now, not the attempt's record", presentLostAfter},
	{"forged-renewals", "a lease that etcd does not renew counts as renewed", forgedRenewals},
	{"start-before-commit", "an attempt is started before its record is written", startBeforeCommit},
	{"deaf-watches", "what watches lose is never found out", deafWatches},
	{"conflicts-together", "transactions that conflict share a request", conflictsTogether},
}

// Named returns the mutant of that name.
func Named(name string) (Mutant, bool) {
	for _, m := range All {
		if m.Name == name {
			return m, true
		}
	}

	return Mutant{}, false
}
