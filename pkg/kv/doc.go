// Package kv holds the etcd primitives that Carillon is built of: a client whose calls all end, conditional writes and
// the errors that say what became of them, fences, a range followed for ever, a copy of a range, a session, and an
// etcd server inside the process.
//
// What is guaranteed:
//
//   - Every KV and Lease call through a [Client] has a deadline.
//   - A write is sent at most once per call: the client's own retries are off, since a retry hides which copy won.
//     Reads are repeated until their deadline while etcd is unavailable.
//   - [Follow] tells of every change of its range in order, or of the whole range anew, and never goes back.
//   - [Session.Done] is closed no later than etcd may drop the lease, on the monotonic clock of this host.
//
// What is not: an error of a write proves nothing unless [Unknown] says so; a watch is a hint and may be late; a
// session that is not done may have lost its lease (revoked a moment ago). Only a [Fence] that is compared in the same
// transaction authorises a write.
//
// The package touches no keys of its own.
package kv
