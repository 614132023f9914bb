// Package etcdhistory detects that the etcd of a cluster was restored from a snapshot that is older than what the node
// has seen. A revision of etcd never goes back otherwise. [Revisions] compares the revision of each answer with the
// highest one that was seen before. [Compare] compares etcd with the data directory when a node starts, and [Monitor]
// while it runs.
//
// Guaranteed: the first answer with a lower revision is detected before the node writes to a history that it does not
// know, and a node that has detected it still knows that after a restart. Not guaranteed: the revision is written to disk
// every ten seconds. If etcd is restored while the node is down, from a snapshot that is younger than that, the node does
// not detect it.
//
// The package reads the cluster's record. It stores the highest revision in the state of the data directory.
package etcdhistory
