// Package kvmem is an in-memory etcd for tests. It is a store of one member that does no I/O, so that whole clusters
// can use it in a testing/synctest bubble.
//
//	Store ──Client──▶ *clientv3.Client with KV, Watcher, Lease, Maintenance and Cluster of this package
//
// It guarantees what etcd guarantees, and passes the same conformance suite:
//
//   - Revisions, reads at old revisions, and compaction.
//   - Transactions. Nested ones compare the state before the whole request. A request that writes a key twice, or has
//     more than 128 operations, is refused.
//   - Leases that expire.
//   - Watches from any revision, with responses for their creation, for progress and for compaction. Watches whose
//     contexts have the same metadata share a stream. As in etcd, a watch that starts at a future revision suppresses
//     the progress notifications of its whole stream.
//
// Nothing that was ever written is lost: Events returns all changes, including compacted ones, for a checker.
//
// It has no authentication, no fragments, no streamed ranges, no members that lag behind and no data on disk. It
// answers every request immediately. Freeze stops it like an etcd that has lost its leader. Tests add all other
// faults with decorators around a client.
//
// Everything that waits does so on channels and timers of the caller's goroutines. After Close of a client, its
// watches have ended. After Close of the store, no timer is left.
package kvmem
