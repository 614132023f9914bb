// Package store contains every transaction of Carillon. No other package writes its records or
// builds comparisons. Package record defines the keys and the values.
//
// A Store has a part for each kind of record: Tasks, Runs, Shards, Inbox, Nodes, Owners,
// Access, Secrets, Freezes and Cluster. They share one connection, because a transaction may
// write several kinds of records: the end of an attempt deletes an inbox record and adds a
// history record. A Store also embeds two readers of packages below it: package eventlog
// reports what has happened, and package etcdadmin the members of etcd.
//
// Guarantees: every write is one conditional transaction. It compares the state on which the
// writer has based its decision, so a concurrent change defeats it and nothing is written. A
// write of a scheduler also compares its fences (package kv), so a node that has lost its shard
// or its session cannot write, however late its request arrives (G1, G2).
//
// Failures: a comparison that does not hold results in task.ErrConflict, task.ErrExists,
// task.ErrNotFound or task.ErrFenced, and this request has written nothing. If an error of etcd
// leaves the outcome open, there are two cases. Commit and Finish resolve the outcome, by the
// nonce in the watermark and by the fencing token in the records. Other writes return
// task.ErrUnknown and are not sent again.
//
// One case remains open: a commit that is sent again may return task.ErrFenced although its
// first copy was applied, if the next owner has opened the shard in between. The worker stops
// in either case, and the next owner has read the result.
package store
