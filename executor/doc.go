// Package executor processes a node's inbox. It starts the attempts that were
// dispatched to the node, adopts them after the node has rejoined the cluster,
// supervises them until they end, and records how they ended.
//
// An inbox record (runs/<node>/…) is the durable intent to run an attempt. Its create
// revision is the attempt's token. An attempt goes through these phases:
//
//	          ┌── cancelled, stale, too late ─────┐
//	          │                                   ▼
//	(seen) waiting ──slot, adopted──▶ running ─▶ ended ──recorded──▶ settled ──record gone──▶ (forgotten)
//	          │                                   ▲                    ▲
//	          ├── another instance's, proved dead ┘                    │
//	          └── draining, or no policy that can be read: handed back ┘
//
// The kind of an attempt's action decides what runs it and which slots it needs. Processes have Config.Slots. HTTP
// attempts have slots of their own, which their targets share (see targetQueue). No-ops need none.
//
// Guarantees:
//
//   - A token is started at most once (G9) by one process of this program, across new
//     lists of the inbox and rejoins. If a record appears with a create revision up to
//     which the inbox was already completely known, it is not new and is never started.
//   - Nothing starts before the first join or after the session may have expired, and
//     an attempt starts only if it was dispatched or adopted under the latest session (G10).
//   - Once Froze returns the revision of a freeze, no attempt of a frozen namespace
//     starts (G21). Nothing starts before the freezes have been read under the latest
//     session, or while that session may have ended unnoticed, because a freeze waits
//     only for nodes that are present. Frozen attempts stay in the inbox.
//   - An attempt whose hand-back has an unknown outcome does not start until a rewrite
//     of its record proves that the hand-back was not applied and never can be.
//   - The first attempt of a tick that has not started by its start deadline ends as
//     missed, frozen or not (G22). Retries and manual runs have no start deadline.
//   - An attempt that was in the inbox before the latest join is adopted before it
//     starts. If it is already running, it continues meanwhile. If its record is gone,
//     it is killed.
//   - Attempts of another instance are never started. They end as lost: at once if that
//     instance is proved dead, otherwise lost_after after this executor's first join.
//   - While the node has no contact with etcd, it kills each attempt at the last
//     acknowledged renewal + the lost_after in the attempt's record − a margin, on a clock
//     that counts suspend. If the daemon is frozen, the guardian does this. The owner of
//     the shard uses the same record, even if the cluster's setting has changed. So no
//     process of an attempt is alive when the attempt is declared lost (G17). HTTP attempts ask before each write
//     whether they may continue; if the daemon is frozen, the guardian kills it.
//   - An HTTP attempt that was not sent uses up no attempt of the retry policy for unsent_for (see Next). A target that
//     does not answer, or that is down, does not delay requests to other targets.
//   - A cancelled run is neither queued nor retried. A cancel that arrives while a
//     result is being recorded prevents the retry.
//   - An outage of etcd kills nothing before that deadline (G18). Results wait in memory.
//   - While etcd is full, CancelAttempt ends an attempt without a change of its record. The
//     cancel is on disk before it is acknowledged, and the attempt's end before it is first
//     written to etcd. Both survive the daemon (see lateCancels).
//
// Not guaranteed: if the daemon dies before etcd is available again, other results that were
// not recorded are gone, and their attempts end as lost. A late cancel is gone, too, if its
// attempt is declared lost before the node is back. Package process documents the
// guarantees about an attempt's processes. Package guardian documents what kills them
// when the daemon cannot.
//
// Keys: runs/<this node>/ (read, rewritten, deleted), freezes (read), and, when an
// attempt ends, history/, dead/ or queue/ of its shard. cleared/<instance> is read here
// and written by the guardian or by the restarted daemon.
//
// One goroutine owns the state (see Executor.Run). All other goroutines leave messages for
// it and wake it. Each attempt with a process or a request has its own goroutines while that
// lives; the number of writers is fixed. The queues are bounded by the size of the
// inbox. Nothing more starts while MaxUnfinished results are unrecorded.
package executor
