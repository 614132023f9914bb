// Package spawn starts processes without waiting for them to execute their program.
//
// syscall.ForkExec returns when the child has executed, and suspends the calling thread
// until then (CLONE_VFORK), under a lock that all forks of the program share. Before it
// executes, the child changes its user and its directory and opens the program.
// That user can delay this without limit: with a lease on the program's file, a FUSE file
// system whose server never answers, or an unavailable network file system, the child
// sleeps in the kernel. Meanwhile no other process can be started, and Go's garbage
// collector waits for the suspended thread.
//
// Start creates the child with CLONE_VM and without CLONE_VFORK, so it is as cheap as
// vfork and returns at once. AwaitExec later reports whether the child has executed its program.
//
// The child shares the parent's memory until it executes, so it must not run Go code, because the
// Go runtime would treat it as a thread of the parent. It runs a few instructions of
// assembly (start_*.s) that use no stack and execute a list of system calls, which Start
// has prepared (see call). That list contains everything that the child does.
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
// Without CLONE_VFORK the user of the child can stop or kill it, but not trace it. A
// process that changes its user is not dumpable, and neither is the parent from then on,
// because they share that attribute with the memory.
//
// On other architectures than amd64 and arm64, Start falls back to syscall.ForkExec, with
// its waiting. Held processes and limits on processes are not available there, and ignored
// signals stay ignored.
package spawn
