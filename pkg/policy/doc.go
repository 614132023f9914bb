// Package policy implements the policy of a host: a file on the node, in which the administrator restricts what
// attempts may do there. No API can change it.
//
// A Policy is pure: it judges an Attempt and names the rule that refuses it. Rules that are absent
// allow everything, with two exceptions: every policy denies some names of variables, and a policy that lists
// users restricts groups. A File is read when it is opened, and
// again whenever it has changed. It is valid only if nobody but root can change or
// replace it. If it is not valid or cannot be read, its Policy method returns an
// error and nothing may start (it fails closed).
//
// Not guaranteed: if other users than root can write to a program or to a directory on its path, they can replace it
// between the last check and its execution. An allowed program may start other programs
// that are not allowed. An allowed interpreter allows everything that it can interpret.
package policy
