// Package election elects one node of those that campaign under a prefix, and runs a function while it leads.
//
//	         ┌──────────── pause, with jitter ◀───────────┐
//	         ▼                                            │
//	open a session ──▶ campaign ──▶ confirm the key ──▶ lead ──▶ resign
//	         │             │              │                         ▲
//	         └─────────────┴── failed ────┴─────────────────────────┘
//
// What is guaranteed: the function starts only after a write that was guarded by the leader key's create revision, so
// the key existed, was ours and was the oldest; its context ends, with a cause, when the session is done or the key is
// gone or has been changed; at the end the key is deleted and the lease revoked, so that the next leader need not wait
// for the lease to expire.
//
// What is not: that the function runs on one node only. A frozen or cut-off leader learns late that it is none any more.
// So every write of a leader carries its Term's fence, and etcd refuses those of a former one.
//
// Keys: <prefix>leader/<lease in hex>, attached to the campaigner's lease; the value is the node. It is the format of
// etcd's own elections: the oldest key leads.
//
// While etcd is away, nobody is elected; Run tries for ever and says so once.
package election
