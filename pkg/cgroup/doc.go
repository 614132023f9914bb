// Package cgroup gives each attempt a control group of its own: what is started
// in one, and all that comes of that, forks, sessions of their own and wiped
// environments included, is found, limited, frozen and killed as one.
//
// What a host has decides how:
//
//	                     found, killed, frozen by      limits by
//	v2                   v2                            v2, if they are delegated to the daemon
//	v2 beside v1         v2                            v1
//	v1                   v1 freezer                    v1
//	neither, or off      nothing: package executor's other ways
//
// The groups lie below the daemon's own, so that what holds for the daemon holds
// for them:
//
//	<own>/daemon                                  v2, with limits: the daemon and its guardian
//	<own>/carillon-<node>-<instance>/plain/<n>    of attempts without limits: used again
//	<own>/carillon-<node>-<instance>/limited/<n>  of those with limits: removed after use
//
// What is guaranteed:
//
//   - A group that is taken is empty, and nobody else's.
//   - A group with a process in it is never handed on: it is set aside, and said.
//   - After Close, or Remove of what Roots says, nothing is left of either kind.
//
// What is not: a process that runs as root may move itself to another group.
//
// Nothing here touches etcd.
package cgroup
