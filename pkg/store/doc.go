// Package store knows every transaction of Carillon. No other package writes its
// records, or builds a compare. Package record has the keys and the values, package
// events the events that follow from them.
//
// Store has a part for each kind of record: Tasks, Runs, Shards, Inbox, Nodes,
// Owners, Tokens, Secrets, Freezes and Cluster; Events and Etcd tell of what has
// happened, and of etcd itself. They share one connection, since a transaction may
// write several kinds: an attempt that ends leaves an inbox and enters history.
//
// What it guarantees: every write is one conditional transaction. Nothing is
// put or deleted without a compare that says what the writer knew. A write of
// a scheduler carries its fences (package kv), so that a node which lost its
// shard or its session cannot write, however late its request arrives.
//
// How it fails: a comparison that fails is task.ErrConflict, task.ErrExists,
// task.ErrNotFound or task.ErrFenced, and this request wrote nothing. An error of
// etcd that leaves the outcome open is resolved here where the record itself can
// tell (Commit by its nonce, Finish by its token); where it cannot (API writes) it
// is task.ErrUnknown, and nothing is sent again. One case is left: a commit that is
// sent again may get task.ErrFenced although its first copy was applied, if the
// next owner has opened the shard in between. Its writer stops either way.
package store
