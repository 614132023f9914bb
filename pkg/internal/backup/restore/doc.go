// Package restore restores a cluster from a snapshot of etcd, while all of its nodes are stopped.
//
// A restore has two steps. [Prepare] makes prepared.db from a snapshot, once. [Install] replaces the data of a member of the
// embedded etcd by it, on each host. The members of an external etcd are restored from the same file with etcdutl.
//
//	snapshot ──Prepare──▶ private etcd ──▶ prepared.db, prepared.json ──Install──▶ <data-dir>/etcd of each member
//
// The package guarantees:
//
//   - The revision of etcd is higher after a restore than at any time before it, whatever snapshot is restored and in whatever
//     order. So revisions that clients know, and fencing tokens, stay valid. This holds while etcd writes fewer than a million
//     revisions a second, and while the clock of the host is not set back by more than the cluster's data directory shows.
//   - The epoch of the cluster is higher than that of the snapshot, and than any that this host has seen. Nodes of a lower epoch
//     start over before they join.
//   - Members of two restores cannot form a cluster with each other, because their clusters have different IDs.
//   - Nothing is half done. prepared.json is written last, and the data of a member are replaced in one step. After an interruption,
//     the same command can be repeated.
//   - What belonged to processes of the lost history is gone: leases, the nodes that were present, the leader, handovers, sessions.
//
// The package does not guarantee that the lost cluster has ended. [CheckNodes] refuses a restore while a node of the backup has a session
// with etcd, or does not answer, unless the caller says that the node is gone.
//
// What happens to the ticks and runs of the lost history is decided by the owners of the shards afterwards, from the
// task.Restored in the cluster's record.
package restore
