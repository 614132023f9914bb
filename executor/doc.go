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
//   - No process exists of which the guardian was not told before: it finds it by
//     its environment at first, and by its group as soon as that has a number.
//   - A process has an empty input, and its output; no other descriptor that was
//     open in the daemon, or in whoever started that.
//   - Every process of an attempt is gone before the attempt ends, however it ends:
//     all that is in its control group. Without control groups: all of its process
//     group; what left that and came to the daemon as an orphan; and if the attempt
//     was made to end (timeout, cancel, shutdown, …), also what still carries
//     CARILLON_RUN_ID and CARILLON_FENCING_TOKEN.
//   - A control group is one attempt's at a time, and was empty when it began.
//   - No zombie is left, even by the first process of a container.
//   - etcd being away kills nothing before that deadline; results wait.
//
// What is not: a process of root's that moves itself to another control group is
// not found. Without control groups: an orphan that left its group and wiped its
// environment ends with the last of the attempts that it may be of, and is never
// found if the daemon is killed. What cannot be killed (it waits for a dead disk)
// is logged, and its control group set aside. The result of an attempt is lost if
// the daemon dies before etcd is back; then the attempt is lost, too.
//
// Keys: runs/<this node>/ (read, rewritten, deleted), freezes (read), and with the
// end of an attempt history/, dead/ or queue/ of its shard; cleared/<instance> is read here and
// written by the guardian.
//
// One goroutine owns the state (see Executor.Run); everybody else pokes it. Of
// the rest, an attempt with a process has three goroutines while that lives, and
// the writers are a fixed number. Queues are bounded by what the inbox holds; at
// MaxUnfinished results that are not recorded nothing more starts.
package executor
