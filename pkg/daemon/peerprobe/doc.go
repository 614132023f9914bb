// Package peerprobe detects that the process of another node has died, long before
// its lease expires, and revokes its leases.
//
// A node keeps a connection to a few other nodes. If a connection ends and the address then
// refuses two connections in a row, no process listens there. A refusal proves no more than
// that, and correctness does not depend on it: the fences stop a node whose lease was revoked by mistake. A timeout
// or a failure of TLS proves nothing.
package peerprobe
