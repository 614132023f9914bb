// Package shard divides the tasks of a cluster among its nodes.
//
// Each task belongs to one of a fixed number of shards forever (Of). Each shard has one owner, the node
// that may write to it. The leader's Rebalancer determines the owners: it computes a Plan from the nodes
// that are present, and writes the owner keys that change. On every node, a Keeper runs one worker for each
// shard that the node owns, and no other.
//
//	leader                                        every node
//	read nodes/, owners/, moves/                  owners/ and the own session
//	     │                                             │
//	     ▼ Moves                                       ▼ Keeper
//	at once   ─► write owners/<shard> ────────────► start or stop a worker
//	handover  ─► write moves/<shard>  ────────────► preload the shard, answer in moves/<shard>
//	     ▲                                             │
//	     └──────── loaded, or not in time ◄────────────┘
//
// # Guarantees
//
//   - Every shard gets an owner while a node is present. Each node has its share by weight, rounded down or
//     up.
//   - No shard moves without need (G15).
//   - Once an owner key is rewritten, the former owner cannot write to the shard (G1), because every commit
//     compares the mod revision of that key.
//
// # Failures
//
// A Keeper that learns late of a change does no harm, because its commits fail. Nor do two nodes that both
// believe that they lead: the writes of the former leader fail, because they compare its term. While etcd
// is unavailable, no shard moves, and workers wait inside their commits.
//
// The package writes owners/ and moves/, and reads nodes/.
package shard
