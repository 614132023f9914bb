// Package cluster has the API's handlers of the cluster as a whole: its status and warnings, its
// settings, freezes, the format of records, the members of an embedded etcd, audits, and recovery
// from a restored snapshot.
//
// The status is asked for when something is wrong: what cannot be found out is left out of it.
package cluster
