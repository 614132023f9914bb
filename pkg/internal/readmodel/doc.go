// Package readmodel answers questions about many tasks without reading them from etcd: which tasks match a filter, in
// which order, and how many there are.
//
//	owner of a shard ── a Row for each task ──► Index ──┐  scan: filter, count, keep the first places
//	owner of a shard ───────────────────────► Index ──┤
//	                                                   ▼
//	                                        NodeAnswer of each node ── Merge ──► Page, with the shards that are missing
//
// The owner of a shard changes its Index when its own state changes. Any number of goroutines may scan an Index at the
// same time, also while the owner waits for etcd. A scan locks only a few hundred rows at a time, so it does not delay
// the owner. So a scan is not a snapshot: a task that changes while it runs counts either before or after the change.
//
// An answer is either complete and correct, or names what is missing. A shard that nobody answers for is named. If two nodes answer for the
// same shard, because its owner changes, only the answer with the newer owner key counts.
//
// The package is pure, apart from the lock of an Index: no I/O and no clock.
package readmodel
