// Package events translates revisions of etcd into events: what happened to the
// cluster, its nodes, shards, tasks and runs, in the words of a user.
//
// It is pure. It reads no etcd and no clock: the events of a revision follow from
// what that revision did to the keys, and from who led, owned and was present
// before it. So every reader gets the same events with the same ids, wherever it
// begins. Package store follows etcd and feeds a Translator, revision by revision.
//
// It guarantees no more than etcd's history does: a change that was compacted away
// is never an event.
package events
