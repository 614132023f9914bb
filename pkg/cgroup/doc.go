// Package cgroup gives each attempt its own control group. The process that is started
// in a group and all its descendants, also those with another session or a cleared
// environment, are found, limited, frozen and killed as a unit.
//
// The method depends on the host:
//
//	                     found, killed, frozen by      limits by
//	v2                   v2                            v2, if the controllers are delegated to the daemon
//	v2 beside v1         v2                            v1
//	v1                   v1 freezer                    v1
//	neither, or off      none: see package proctree    none
//
// The groups are below the daemon's own group, so limits on the daemon apply
// to them, too:
//
//	<own>/daemon                                  the daemon and its guardian, if v2 is used for limits
//	<own>/carillon-<node>-<instance>/plain/<n>    attempts without limits; these groups are reused
//	<own>/carillon-<node>-<instance>/limited/<n>  attempts with limits; these groups are removed after use
//
// Guarantees:
//
//   - A group from Acquire is empty and belongs to one attempt.
//   - A group that contains a process is never reused. It is quarantined and logged.
//   - After Close, or Remove of what Roots returns, neither processes nor groups are left.
//
// Not guaranteed: a process that runs as root can move itself to another group.
//
// The package does not use etcd.
package cgroup
