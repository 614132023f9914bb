// Package cluster contains the API handlers for the cluster as a whole: its status and warnings, its settings,
// freezes, the format of records, the members of an embedded etcd, audits, and recovery from a restored
// snapshot.
//
// Operators read the status when something is wrong. So the status leaves out what cannot be determined,
// instead of failing.
package cluster
