// Package kvmem is an etcd in memory, for tests: a store of one member that does no I/O, so that whole
// clusters run over it in a testing/synctest bubble.
//
//	Store ──Client──▶ *clientv3.Client with KV, Watcher, Lease, Maintenance and Cluster of this package
//
// It promises what etcd promises, and passes the same conformance suite: revisions, transactions (nested ones compare
// the state before the whole request; a key written twice in one request is refused; 128 operations), reads at old
// revisions, compaction, leases that expire, watches from any revision with created, progress and compacted responses.
// Watches that share the metadata of their context share a stream: one that starts beyond the store's revision silences
// the progress of all of them, as in etcd. Nothing that was ever written is forgotten: Events returns all of it,
// compacted or not, for a checker.
//
// What it leaves out: authentication, fragments, streamed ranges, members that lag behind, and bytes on disk. It is
// never late, and answers every request in no time; Freeze stops it as an etcd without a leader stops. Everything worse
// is put around a client by decorators.
//
// All that waits waits on channels and timers made by the caller's goroutines. After Close of a client its watches have
// ended; after Close of the store no timer is left.
package kvmem
