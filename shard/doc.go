// Package shard divides the tasks of a cluster among its nodes.
//
// A task belongs to one of a fixed number of shards for ever (Of). Each shard
// has one owner, the node that may write it. Which one is the leader's to say:
// the Rebalancer computes a Plan from the nodes that are present and writes the
// owner keys that change. On every node a Keeper runs one worker for each shard
// that the node owns, and no other.
//
// What it guarantees: every shard gets an owner while there is a node; each
// node has its fair share, rounded down or up; no shard moves that need not.
// The moment that an owner key is rewritten its former owner can no longer
// write, because its mod revision is the fence in all of that owner's commits.
// So it does no harm when a Keeper learns of it late, or two leaders think that
// they lead: the second one's writes fail on the term.
//
// It touches owners/ and reads nodes/. When etcd is away nothing moves, and
// workers wait inside their commits.
package shard
