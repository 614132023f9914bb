// Package peerprobe notices that the process of another node has died, long before
// its lease ends, and revokes what it held.
//
// A node keeps a connection to a few others. One whose connection ends, and that then
// refuses to be dialled, twice, has no process that listens. That is all that a
// refusal proves: the fences make it safe, not this package. A timeout proves
// nothing, nor does a failure of TLS.
package peerprobe
