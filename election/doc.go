// Package election elects one of the nodes that campaign under a prefix, and runs a function while that
// node leads.
//
//	         ┌──────────── pause, with jitter ◀───────────┐
//	         ▼                                            │
//	open a session ──▶ campaign ──▶ confirm the key ──▶ lead ──▶ resign
//	         │             │              │                         ▲
//	         └─────────────┴── failed ────┴─────────────────────────┘
//
// # Guarantees
//
//   - The function starts only after a write that compared the leader key's create revision. So the key
//     existed, belonged to this node, and was the oldest.
//   - The context of the function ends, with a cause, when the session ends or the key is deleted or
//     changed.
//   - At the end, the key is deleted and the lease revoked, so that the next leader does not have to wait
//     until the lease expires.
//
// The package does not guarantee that the function runs on one node only. A leader that is frozen or cut
// off learns late that it has lost its leadership. So every write of a leader compares its Term's fence,
// and etcd rejects the writes of a former leader (G2).
//
// # Keys
//
// The package writes <prefix>leader/<lease in hex>, attached to the candidate's lease. The value is the
// node. This is the format of etcd's own elections: the oldest key leads.
//
// # Failures
//
// While etcd is unavailable, no node is elected. Run retries until its context ends, and logs that once.
package election
