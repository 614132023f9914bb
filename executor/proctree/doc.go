// Package proctree knows the processes of an attempt: it finds, signals, stops and kills all of them together.
//
// A Tree is an attempt that has been started. With a control group, its processes are those in that. Without one, they
// are found in three ways, which together miss only what leaves its process group and clears its environment while the
// daemon is not there to adopt it:
//
//	process group   all that did not leave the group of the main process
//	mark            what carries the attempt's run id and token in its environment, whatever its group
//	orphans         what lost its parent and came to the daemon, which is a subreaper: see Orphans
//
// A KillSet kills what attempts of another process left behind: the guardian kills what a dead daemon left, a restarted
// daemon what its inbox says of the former one.
//
// What is guaranteed: no signal reaches a process that is not of the attempt. A process number may be given to a new
// process at any time, so each process is compared by its start time and signalled through a pidfd, and a group is told
// from a later one of the same number by when its leader started. KillAll, and a Tree that is Empty, leave no process
// of the attempt but zombies.
//
// What is not: a process that sleeps in the kernel cannot be killed. KillAll gives up when it is told to, and a Tree is
// not empty until that process ends.
package proctree
