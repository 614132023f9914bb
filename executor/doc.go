// Package executor is a node's inbox: it starts the attempts that the node was
// given, adopts them after a rejoin, sees them to their end and records it.
//
// An inbox record (runs/<node>/…) is the durable intent. Its create revision is
// the attempt's token. The life of an attempt here:
//
//	          ┌── cancelled, stale, too late ─────┐
//	          │                                   ▼
//	(seen) waiting ──slot, adopted──▶ running ─▶ ended ──recorded──▶ settled ──record gone──▶ (forgotten)
//	          │                                   ▲                    ▲
//	          ├── another instance's, proved dead ┘                    │
//	          └── draining, or no policy that can be read: handed back ┘
//
// What is guaranteed:
//
//   - A token is started at most once by a process of this program, across new
//     lists of the inbox and rejoins: whatever the inbox shows of a revision up to
//     which it was already known completely is not new, and is never started.
//   - Nothing starts before the first join, nor after the node's deadline, nor
//     unless the attempt was dispatched, or adopted, under the latest session.
//   - Nothing of a namespace starts once Froze says that its freeze is obeyed, nor
//     before the freezes were read under the latest session, nor when that may have
//     ended unnoticed: whoever waits for all nodes that are present waits for this
//     one. What is frozen stays in the inbox.
//   - An attempt whose hand-back has an unknown outcome is not started until a rewrite
//     of its record has proved that the hand-back was not applied, and never can be.
//   - What a tick gave rise to and has not started by its start deadline ends as
//     missed, frozen or not; a retry and a manual run have none.
//   - What was held before the latest join is adopted before it starts; if it
//     runs, meanwhile it goes on. What cannot be adopted is killed.
//   - Another instance's attempts are never started; they end as lost, at once
//     if that instance is proved dead, else their lost_after after the first join.
//   - While the node is silent, each attempt is killed at the last acknowledged
//     renewal + the lost_after in its record − a margin, on a clock that counts
//     suspend; by the guardian, if the daemon is frozen. The owner of its shard goes
//     by the same record, whatever the cluster's setting has become. So no process of
//     an attempt lives when that is declared lost, whatever its task's policy lets
//     follow then.
//   - A cancelled run is neither queued nor retried; a cancel that arrives while
//     a result is being recorded stops the retry.
//   - etcd being away kills nothing before that deadline; results wait.
//
// What is not: the result of an attempt is lost if the daemon dies before etcd is back; then the attempt is lost, too.
// What holds for the processes of an attempt is in package process, and what kills them when the daemon cannot in
// package guardian.
//
// Keys: runs/<this node>/ (read, rewritten, deleted), freezes (read), and with the
// end of an attempt history/, dead/ or queue/ of its shard; cleared/<instance> is read here and
// written by the guardian.
//
// One goroutine owns the state (see Executor.Run); everybody else wakes it. Of
// the rest, an attempt with a process has its own goroutines while that lives, and
// the writers are a fixed number. Queues are bounded by what the inbox holds; at
// MaxUnfinished results that are not recorded nothing more starts.
package executor
