// Package ledger remembers the outcomes of a task's ticks after its history was trimmed.
//
// The trimmer (background.Trimmer) folds the records that it deletes into chunks, in the transaction that deletes them. So
// each record is in the history or in the ledger at every revision, and never in both. A chunk is the value of one key
// below record.Keys.LedgerOf. When the newest chunk is full, the next one begins: see ChunkSize.
//
// A chunk does not list successes. It contains spans: every tick from the first to the last one succeeded unless another
// entry names it, provided that the count of the span matches the schedule. A reader counts the ticks that the task had in it. If there
// were more than the span counts, it is not known which of them succeeded: a record was deleted without a fold because
// etcd was full, or the schedule that was in force is no longer kept. A span ends where the schedule has a tick that is
// not folded, so that a pause or a hole does not make a whole day uncertain. Runs that took long are folded after those of
// later ticks. So spans of several chunks may overlap: together they count the ticks from the first to the last one.
//
// Ticks that did not succeed are exceptions: each has its state, its reason and its node. Of an hour with more than two
// exceptions, only the first keeps its own entry. The others are counted in one line by state and reason, which names the
// earliest twelve, and tells between which instants the others lie. Ticks outside are as certain as if there were no others.
// Runs that somebody requested are listed apart, because they belong to no tick.
//
// The newest chunk says up to which tick older chunks are gone, and whether records are deleted without being counted
// (Chunk.Gone, Chunk.Uncounted). So a reader knows from which time on history and ledger contain every tick (Book.CompleteSince).
//
// # Why spans count
//
// A ledger with the outcome of each tick would never have to answer that it does not know which ticks of a span succeeded.
// Two such forms were tried:
//
//   - Outcomes by the position of the tick in the schedule. A reader must then know each schedule that was in force, and
//     have the time zone data with which the ticks were computed. With other data, every outcome after a clock change
//     belongs to a wrong tick, and nothing shows it. A count that does not match shows it.
//   - The distances between ticks, as lengths of equal runs, which needs no schedule. Thirty days at every minute, of which
//     1 % fail, need 1 KB when compressed, instead of 21 KB. But a task that runs a minute after its last run has ended needs
//     95 KB instead of 2 KB, because no two distances are equal, and a task that runs every second, of which 10 % fail, 317 KB
//     instead of 104 KB. For these, counting would have to stay, as a second mechanism.
//
// The package is pure: no I/O and no clock.
package ledger
