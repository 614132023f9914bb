// Package spawn starts processes without waiting for them to execute their program.
//
// syscall.ForkExec returns when the child has executed, and suspends the calling thread
// until then (CLONE_VFORK), under a lock that all forks of the program share. Before it
// executes, the child becomes another user, changes its directory and opens the program.
// That user decides how long this takes: a lease on the program's file, a FUSE file
// system whose server never answers, or a network file system that is gone make the child
// sleep in the kernel. Meanwhile no other process can be started, and the Go scheduler
// waits for the suspended thread.
//
// Start creates the child with CLONE_VM and without CLONE_VFORK: it is as cheap as
// vfork, and returns at once. AwaitExec says later what became of the child.
//
// The child shares the parent's memory until it executes, so it must not run Go code: the
// Go runtime would take it for a thread of the parent. It runs a few instructions of
// assembly (start_*.s) that use no stack and carry out a list of system calls, which Start
// has prepared (see call). Everything that the child does is in that list.
//
//   - No signal handler of the parent runs in the child: all signals are blocked from
//     before the clone until directly before the execve, where the mask becomes empty.
//     Dispositions are the default then, also of signals that the parent ignores.
//   - No descriptor but 0, 1 and 2 reaches the program, and the child closes its copies of
//     all others before it becomes the user. A child that hangs holds no lock, no
//     listening socket, and no pipe of another process.
//   - The memory that the list points to is kept reachable until the child has executed or
//     ended. Go's garbage collector does not move heap objects.
//   - The child is killed if the thread that called Start ends (PR_SET_PDEATHSIG), and it
//     does not execute if the parent has ended before that was set.
//
// Without CLONE_VFORK the user of the child can stop or kill it, but not trace it: a
// process that changes its user is not dumpable, and the parent is not either from then on,
// since they share that attribute with the memory.
//
// On other architectures than amd64 and arm64, Start falls back to syscall.ForkExec, with
// its waiting. Held processes and limits on processes are not available there, and ignored
// signals stay ignored.
package spawn
