// Package authority keeps a node's copy of the access records current, and says who a
// token's holder is and what they may do.
//
// It guarantees that
//   - a View is made of all records of one revision, never of a part of a transaction,
//   - before the first list nothing is authorised,
//   - a token is verified without any access to etcd, whether it is known or not,
//   - Proven says since when the copy is known to be current: it compares the copy with a
//     linearizable read of two keys, and its age counts from when that read was sent.
//
// It does not guarantee that a View is current: a watch may be late. A write is safe all the
// same, because its transaction compares the fence (see package store). A reader asks Proven.
//
// It reads access/ and writes nothing. If the watch stalls, the copy gets old: Proven returns
// an error after maxAge, and reads are refused until etcd answers again.
package authority
