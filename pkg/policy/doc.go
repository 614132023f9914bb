// Package policy is what the administrator of a host allows attempts to do there,
// whatever their tasks say: a file on the node, which no API reaches.
//
// A Policy is pure: it judges an Attempt, and says which rule refuses it. What it
// leaves out it allows, but for the names of variables, of which some are denied
// as soon as there is a policy, and groups, where it lists users. A File is read when it is opened, and
// anew whenever it has changed. It counts only if nobody but root can change it or
// put another in its place; if it does not, or cannot be read, its Policy is an
// error, and nothing may start: it fails closed.
//
// What is not guaranteed: that a program stays what it was between the last look
// and its execution, where others than root can write to it or to a directory on
// the way; or that a program which is allowed does not start another one that is
// not. An interpreter that is allowed allows all that it can interpret.
package policy
