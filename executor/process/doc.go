// Package process runs attempts as processes of this host, in isolation, and reports how they ended.
//
// A Runner starts an attempt, follows orders to kill or pause it, and returns a Result when nothing of the attempt is
// left:
//
//	policy, secrets ─▶ account, confinement ─▶ working directory ─▶ guardian ─▶ fork ─▶ wait ─▶ end what is left ─▶ Result
//
// Guarantees:
//
//   - The guardian knows each attempt before its process exists. It finds the process by its environment at first, and
//     by its process group as soon as that has a number.
//   - A process has its standard input, which is empty unless the task has stdin, and its output. It inherits no other
//     descriptor of the daemon or of the program that started the daemon, and nothing from the daemon's environment.
//   - Limits, priorities, a private /tmp and the user are in force before the first instruction of the program. If
//     this host cannot enforce a setting, the start fails or the run reports it, as the task specifies.
//   - The node's policy is checked against the program that is executed, and again directly before the fork.
//   - Every process of an attempt is gone before RunAttempt returns (G20), however the attempt ended. With control
//     groups, these are the processes in its group. Without, they are its process group, the processes that left that
//     group and became orphans of the daemon and, if the attempt was killed (timeout, cancel, shutdown, …), also
//     those that still carry CARILLON_RUN_ID and CARILLON_FENCING_TOKEN.
//   - A control group belongs to one attempt at a time and is empty when the attempt begins.
//   - No zombie is left, even by the first process of a container.
//   - A start that hangs (a lease on the program, a file system that does not answer) delays no other start.
//
// Not guaranteed: a root process that moves itself to another control group is not found. Without control groups, an
// orphan that left its group and cleared its environment ends with the last of the attempts to which it may belong,
// and is never found if the daemon is killed. A process that cannot be killed, for example because it waits for a dead
// disk, is logged, and its control group is quarantined.
//
// The package uses no etcd key: a function reads secrets. All processes are forked by a few threads that live as long
// as Run, since the kernel sends the parent-death signal when the thread that forked ends. An attempt
// has three goroutines while its process lives.
package process
