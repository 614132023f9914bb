// Package proctree finds, signals, stops and kills all processes of an attempt together.
//
// A Tree is an attempt that has been started. With a control group, its processes are those in the group. Without one,
// they are found in three ways. Together these miss only a process that leaves its process group and clears its
// environment while there is no daemon to adopt it:
//
//	process group   processes that did not leave the group of the main process
//	mark            processes with the attempt's run id and token in their environment, in any group
//	orphans         processes that lost their parent and were adopted by the daemon, a subreaper; see Orphans
//
// A KillSet kills processes that another daemon process has left behind: the guardian kills those of a dead daemon, and
// a restarted daemon kills those of the attempts that its inbox lists for its former instance.
//
// Guaranteed: no signal reaches a process that does not belong to the attempt. The kernel may reuse a process number at
// any time, so each process is identified by its start time and signalled through a pidfd, and a group is distinguished
// from a later one with the same number by the start time of its leader. KillAll, and a Tree that is Empty, leave no process
// of the attempt but zombies.
//
// Not guaranteed: a process that hangs in the kernel cannot be killed. KillAll stops waiting when its caller cancels it,
// and a Tree is not empty until that process ends.
package proctree
