// Package bench is the command "carillon bench": it measures Carillon against
// what its etcd can do, in one run, on one machine.
//
//	etcd (embedded, or given) ─► a cluster of its own under /carillon-bench-<random>
//	   ─► limit: the same writes without Carillon   ─► tasks ─► one node's real parts
//	   ─► warm-up ─► measure ─► settle ─► stop ─► limit again ─► read every revision ─► clean up
//
// What is measured is the real thing: scheduler.Engine, shard.Keeper,
// executor.Executor and api are wired to store.Store and a kv.Committer as
// package daemon wires them. Two things differ. The harness looks over the
// shoulder of store (tap), and it holds the clock of the scheduler:
//
//   - Rates are measured with a clock that runs as fast as ticks are decided:
//     it is never more than nine tenths of a period ahead of the first tick that
//     is not. So there is always something due, and no task ever has two ticks
//     due, which would be another thing to measure (the missed policy). The
//     lateness that goes with a rate is that of a saturated scheduler: from when
//     the clock reached a tick to when etcd had acknowledged its commit.
//   - Lateness is measured with a clock that goes as fast as the wall's, and
//     only is another time of the day.
//
// Sessions, leases and the executor always live in real time.
//
// One benchmark is another kind: failover starts daemons, as carillon agent does,
// in processes of their own, and sees from outside, in etcd, when each run was
// decided while nodes come, go and die. Their clock is the real one.
//
// What is guaranteed: a result is verified only if every revision of the run,
// read back from etcd afterwards, shows each tick up to the watermarks decided
// exactly once, and each run dispatched once, ended once, in the revision that
// deleted its attempt. A result that is not verified makes the command fail. The
// package touches no key outside of its prefix, and deletes that at the end,
// also when it is interrupted; if it is killed, the prefix stays behind.
//
// What is not: a figure says something of this machine at this time only. The
// limits are measured before and after, so that ratios suffer less from what
// else runs. Scheduler, load and an embedded etcd share the process.
package bench
