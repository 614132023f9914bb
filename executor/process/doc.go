// Package process runs attempts as processes of this host, in isolation, and says how they ended.
//
// A Runner starts an attempt, follows the orders that it is given meanwhile, and returns a Result when nothing of the
// attempt is left:
//
//	policy, secrets ─▶ account, confinement ─▶ working directory ─▶ guardian ─▶ fork ─▶ wait ─▶ end what is left ─▶ Result
//
// What is guaranteed:
//
//   - No process exists that the guardian was not told of before: it finds it by its environment at first, and by its
//     group as soon as that has a number.
//   - A process has an empty input, and its output; no other descriptor that was open in the daemon, or in whatever
//     started the daemon. Its environment has nothing of the daemon's.
//   - Limits, priorities, a private /tmp and the user are in force before the first instruction of the program. What
//     this host cannot enforce forbids the start, or is reported, as the task wants.
//   - The node's policy judges the program that is executed, and is asked again directly before the fork.
//   - Every process of an attempt is gone before RunAttempt returns, however the attempt ended: all that is in its
//     control group. Without control groups: all of its process group; what left that and came to the daemon as an
//     orphan; and if the attempt was made to end (timeout, cancel, shutdown, …), also what still carries
//     CARILLON_RUN_ID and CARILLON_FENCING_TOKEN.
//   - A control group is one attempt's at a time, and was empty when it began.
//   - No zombie is left, even by the first process of a container.
//   - A start that hangs (a lease on the program, a file system that does not answer) holds up no other.
//
// What is not: a process of root's that moves itself to another control group is not found. Without control groups: an
// orphan that left its group and wiped its environment ends with the last of the attempts that it may be of, and is
// never found if the daemon is killed. What cannot be killed (it waits for a dead disk) is logged, and its control
// group set aside.
//
// It touches no etcd key: secrets come through a function. All processes are forked by a few threads that live as long
// as Run, since the kernel sends the parent-death signal when the thread that forked ends. An attempt with a process
// has three goroutines while that lives.
package process
