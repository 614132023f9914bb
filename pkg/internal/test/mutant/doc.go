// Package mutant breaks Carillon's protocol on purpose, to test the tests: a checker that never fails proves
// nothing. The simulation must detect each of these mutants in a cluster of real nodes (TestMutants_AreCaught of
// package sim).
//
// A mutant sits between a node and its etcd. It wraps the KV, Watcher and Lease of the node's client (see package
// etcdhook), removes comparisons from transactions, forges answers, and drops events. The product contains no
// switches for mutants. Where a rule is not enforced in the client's calls, a mutant changes what the node reads or
// what it writes:
//
//	no fence compare         no-owner-fence, no-session-fence, no-term-compare
//	no watermark compare     no-watermark-compare
//	start before commit      start-before-commit: a node receives attempts that are not written yet
//	error = not applied      error-is-nothing; and the opposite, error-is-done
//	lost_after = 0           cleared-unseen: only a proof of death shortens the wait, so every proof is forged
//	Next(t) = t              tick-again: decided ticks lie after the watermark
//	watch without reconcile  deaf-watches: events are lost, and the lists that would show it are refused
//	conflicts in a request   conflicts-together
//	open without its commit  open-without-commit: a read replaces it
//
// How nodes combine answers to queries cannot be broken in etcd's client. The mutants of lists (lists.go) stand for the
// merge itself.
//
// The package is only for tests.
package mutant

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// Mutant breaks one rule of the protocol.
type Mutant struct {
	Name string
	// Breaks describes the defect in one sentence.
	Breaks string
	// New returns a function that puts the defect into the clients of one cluster's nodes. The function is called
	// for each client before the node uses it. State that all clients of a cluster share is created by New.
	New func(keys record.Keys) func(node string, c *clientv3.Client)
}

// All lists the mutants, in the order of the rules in docs/guarantees.md.
var All = []Mutant{
	{"no-owner-fence", "commits do not compare the owner key", withoutComparisons(ownerFence)},
	{"no-session-fence", "commits do not compare the key of their node", withoutComparisons(sessionFence)},
	{"no-watermark-compare", "commits do not compare the watermark", withoutComparisons(watermarkKnown)},
	{"no-entry-compare", "commits do not compare the entries that they decide for", withoutComparisons(entryKnown)},
	{"no-queue-compare", "a waiting run is dispatched even if its record no longer exists", withoutComparisons(queueKnown)},
	{"no-run-compare", "ends, adoptions and cancels do not compare the attempt's record", withoutComparisons(runKnown)},
	{"no-term-compare", "a leader writes owners even if it has lost the leadership", noTerm},
	{"open-without-commit", "a worker opens its shard with a read instead of a write", openByRead},
	{"seen-ahead", "the watermark names a revision that the owner has not seen", editTransactions(seenAhead)},
	{"tick-again", "the watermark is set before the ticks that a commit decides", editTransactions(tickAgain)},
	{"adoption-forged", "an adoption counts as done although the record has changed: a return to the queue with unknown outcome may have been applied", adoptionForged},
	{"error-is-nothing", "an unknown outcome counts as a failed write", errorIsNothing},
	{"error-is-done", "an unknown outcome counts as a success", errorIsDone},
	{"no-freezes-compare", "commits do not compare the record of freezes", withoutComparisons(freezesKnown)},
	{"no-revised-compare", "commits that move the watermark do not compare which edits gave tasks new ticks", withoutComparisons(revisedKnown)},
	{"edit-unrevised", "edits that give a task new ticks do not write the revised key", editTransactions(withoutRevision)},
	{"edit-uncompared", "edits do not compare the watermark", withoutComparisons(watermarkOfEdit)},
	{"run-uncounted", "an entry forgets the run that its commit counts", editTransactions(runUncounted)},
	{"range-short", "a record of ticks that did not run is one tick short when it grows", editTransactions(rangeShort)},
	{"nothing-kept", "earlier versions of tasks and dead runs are not kept", editTransactions(nothingKept)},
	{"no-parent-compare", "a part is retried even if its run is ending", withoutComparisons(parentKnown)},
	{"part-again", "a run still lists a part as waiting that its commit dispatches", editTransactions(partAgain)},
	{"part-astray", "a run records other nodes for its parts than those that receive them", editTransactions(partAstray)},
	{"part-untold", "the record of a run's end leaves a part out", editTransactions(partUntold)},
	{"rule-bent", "a run with too few successful parts is recorded as succeeded", editTransactions(ruleBent)},
	{"stale-scan", "active runs are read at a revision before the shards were opened", staleScan},
	{"anyones-attempt", "a node starts attempts that were meant for another instance", anyonesAttempt},
	{"cleared-unseen", "every absent instance counts as proved dead: nothing waits for lost_after", clearedUnseen},
	{"present-lost-after", "an owner uses the current lost_after of the cluster, not that of the attempt's record", presentLostAfter},
	{"forged-renewals", "a lease that etcd does not renew counts as renewed", forgedRenewals},
	{"start-before-commit", "an attempt is started before its record is written", startBeforeCommit},
	{"deaf-watches", "events that a watch lost are never detected", deafWatches},
	{"namespaces-open", "owners do not check what a namespace allows before they start a run", openNamespaces},
	{"limits-unseen", "owners place runs by all labels that nodes announce", unseenLimits},
	{"accept-anything", "owners do not check what a task accepts before they start a manual run", acceptAnything},
	{"unsent-counted", "attempts that were not sent count for the retry policy", editTransactions(unsentCounted)},
	{"unsent-forever", "attempts that were not sent stay free after unsent_for", editTransactions(unsentForever)},
	{"unsent-after-sent", "attempts that were not answered count as not sent", editTransactions(unsentAfterSent)},
	{"retry-after-clamped", "a run that waits for its target starts when its backoff is over", showQueued(waitUnknown)},
	{"full-rule-ignored", "ticks start although a run of their task waits for its target", showQueued(targetUnknown)},
	{"fold-apart", "what a trim deletes is added to the ledger in a second transaction", foldApart},
	{"chunk-uncompared", "folds do not compare the ledger and the records that they have read", withoutComparisons(chunkKnown)},
	{"grown-range-unguarded", "folds do not compare the records that their owner may extend", withoutComparisons(rangeKnown)},
	{"exception-dropped", "a fold forgets a tick that did not succeed", editTransactions(exceptionDropped)},
	{"span-over-a-hole", "a span of successes goes on over ticks that are not in the ledger", editTransactions(spanOverHole)},
	{"conflicts-together", "transactions that conflict share a request", conflictsTogether},
}

// Named returns the mutant with that name.
func Named(name string) (Mutant, bool) {
	for _, m := range All {
		if m.Name == name {
			return m, true
		}
	}

	return Mutant{}, false
}
