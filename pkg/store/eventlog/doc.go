// Package eventlog reports what has happened in a cluster: it follows the revisions of etcd, and
// package events translates each of them to events.
//
// The log is a view. Nothing is written for it: an event exists as long as etcd keeps the
// revision from which it is derived. So every node delivers the same events with the same ids,
// and a reader may continue on another node.
//
// Guarantees: FollowEvents delivers every wanted event after a place, once and in order, or an
// event of the kind gap for those whose revisions etcd has compacted or lost. PlaceOf returns a
// place that is not after a given time.
//
// Keys: it reads all keys of the cluster with their previous values, and writes none.
//
// Failures: while etcd is unavailable, FollowEvents waits, and then continues at the place that it
// has reached. The other methods return an error that wraps task.ErrUnavailable.
package eventlog
