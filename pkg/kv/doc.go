// Package kv holds the etcd primitives that the rest of Carillon uses: a client whose calls all have
// deadlines, conditional writes and the classification of their errors, fences, sessions, a followed key
// range, a local copy of a range, and group commit. Package embedded runs an etcd server inside the process.
//
// The package guarantees:
//
//   - Every KV and Lease call through a [Client] has a deadline.
//   - A write is sent at most once per call. The retries of the etcd client are switched off, because a retry
//     hides which of the copies succeeded. Reads are repeated until their deadline while etcd is unavailable.
//   - [Follow] delivers every change of its range in order, or the whole range again. Its revisions never
//     decrease.
//   - [Session.Done] is closed no later than etcd may drop the lease, measured with the monotonic clock of
//     this host.
//
// The package does not guarantee:
//
//   - That a write failed because its call returned an error. The write may have succeeded if [Unknown] is
//     true for the error.
//   - That a watch is up to date. A watch is a hint and may be late.
//   - That a session which is not done still has its lease. The lease may have been revoked a moment ago.
//
// Therefore only a [Fence] that is compared in the same transaction authorizes a write (G1, G2).
//
// The package has no keys of its own.
package kv
