// Package etcdadmin reports the members of etcd with their status and alarms, and adds and removes members of an
// embedded etcd.
//
// Guaranteed: a member of an embedded etcd is added or removed only if a majority of members that run remains. A new
// member has no vote before it has caught up. Not guaranteed: the status of a member is as of its last answer, and that
// of another member of an embedded etcd is as of the last announcement of its node.
//
// The package reads and writes no key: it uses etcd's API for maintenance and for the cluster. If a member does not
// answer, the error is in its [Member].
package etcdadmin
