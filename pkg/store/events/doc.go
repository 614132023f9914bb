// Package events translates revisions of etcd into events: what happened to the cluster, its
// nodes, shards, tasks and runs, in terms of a user.
//
// It is pure: it reads neither etcd nor a clock. The events of a revision follow from the
// changes of that revision, and from who led, owned and was present before it. So every reader
// gets the same events with the same ids, wherever it begins. Package store follows etcd and
// passes each revision to a Translator.
//
// An event exists only as long as etcd has the revision: a change that has been compacted is
// never translated.
package events
