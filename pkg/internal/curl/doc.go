// Package curl writes the request of an HTTP action as a curl command for a POSIX shell, with which a person can repeat it.
//
// The command contains the values that the run had. It never contains a secret: each one is a shell variable that the
// person sets. So it can be pasted into a terminal, a ticket or a chat.
//
// The package does no I/O and knows nothing of the node's policy: a request that a node refuses to send can still be
// written.
package curl
