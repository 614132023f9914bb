// Package bench implements the program carillon-bench. It measures Carillon in relation to what its etcd can do, in one
// run, on one machine. The product does not contain it.
//
//	etcd (embedded, or given) ─► a cluster of its own under /carillon-bench-<random>
//	   ─► limit: the same writes without Carillon   ─► tasks ─► one node's real parts
//	   ─► warm-up ─► measure ─► settle ─► stop ─► limit again ─► read every revision ─► clean up
//
// The real components are measured: scheduler.Engine, shard.Keeper, executor.Executor and api are wired to
// store.Store and a kv.Committer as package daemon wires them. Two things differ: the harness observes the calls to
// store (tickObserver), and it controls the clock of the scheduler.
//
//   - Rates are measured with a clock that advances as fast as ticks are decided. It is never more than nine
//     tenths of a period ahead of the first undecided tick. So there is always something due, and no task ever has
//     two due ticks, which would measure the missed policy instead. The lateness that belongs to a rate is that of
//     a saturated scheduler: from when the clock reached a tick to when etcd had acknowledged the tick's commit.
//   - Lateness is measured with a clock that advances in real time and only shows another date.
//
// Sessions, leases and the executor always use real time.
//
// The benchmarks failover and list are different. They start agents in separate processes, from this program, and
// observe in etcd when each run is decided: failover while nodes join, drain, restart and die, list while many questions
// about tasks are asked through the API. The clock of the daemons is the real one.
//
// A result is verified only if all revisions of the run, read back from etcd afterwards, show that each tick up to
// the watermarks was decided exactly once, and that each run was dispatched once and ended once, in the revision
// that deleted its attempt. A result that is not verified makes the command fail. The package touches no key
// outside of its prefix, and deletes that at the end, also when it is interrupted. If it is killed, the prefix
// remains.
//
// A figure describes only this machine at this time. The limits are measured before and after the benchmark, so
// that other load affects ratios less. Scheduler, load and an embedded etcd share the process.
package bench
