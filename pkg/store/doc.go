// Package store knows every key of Carillon and every transaction of its
// domain. No other package builds a key, a compare or a value.
//
// What it guarantees: every write is one conditional transaction. Nothing is
// put or deleted without a compare that says what the writer knew. A write of
// a scheduler carries its fences (package kv), so that a node which lost its
// shard or its session cannot write, however late its request arrives.
//
// How it fails: a lost compare is task.ErrConflict, task.ErrExists,
// task.ErrNotFound or task.ErrFenced, and nothing was written. An error of
// etcd after which nobody knows whether the write was applied is settled here
// where the record itself can tell (Commit by its nonce, Finish by its token);
// where it cannot (API writes) it is task.ErrUnknown, and nothing is issued
// again.
//
// Values are JSON. What a record's key says (shard, namespace, task, run, node)
// is not repeated in its value.
package store
