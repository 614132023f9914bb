// Package bench implements the program carillon-bench. It measures Carillon in relation to what its etcd can do, in one
// run, on one machine. The product does not contain it.
//
//	etcd (embedded, or given) ─► a cluster of its own under /carillon-bench-<random>
//	   ─► limit: the same writes without Carillon   ─► tasks ─► a node
//	   ─► warm-up ─► measure ─► settle ─► stop ─► limit again ─► read every revision ─► clean up
//
// The node is a whole daemon, as carillon agent runs it. Most benchmarks run it in this process, and learn from the
// transactions of its etcd client which ticks are dispatched and which runs have ended (tickObserver).
//
//   - Rates are measured with a clock that advances as fast as ticks are decided (pacedClock). It is never more than
//     nine tenths of a period ahead of the first undecided tick. So there is always something due, and no task ever has
//     two due ticks, which would measure the missed policy instead. The lateness that belongs to a rate is that of
//     a saturated scheduler: from when the clock reached a tick to when etcd had acknowledged the tick's commit.
//     The clock is never ahead of the real time, so a task has at most ten ticks per second.
//   - Everything else is measured with the real clock. Tasks whose lateness is measured have an end, so that everything
//     can be read back.
//
// In the benchmarks fire and scale, runs go to the inbox of a node that has no process and ignores them.
//
// The benchmarks scale, failover, chain and list start agents in separate processes, from this program. In the last three,
// an observer watches in etcd when each run is decided: failover while nodes join, drain, restart and die, chain from the ends of the
// runs that start others, list while many questions about tasks are asked through the API.
//
// A result is verified only if all revisions of the run, read back from etcd afterwards, show that each tick up to
// the watermarks was decided exactly once, and that each run was dispatched once and ended once, in the revision
// that deleted its attempt. A result that is not verified makes the command fail. The package touches no key
// outside of its prefix, and deletes that at the end, also when it is interrupted. If it is killed, the prefix
// remains.
//
// A figure describes only this machine at this time. The limits are measured before and after the benchmark, so
// that other load affects ratios less. Node, load and an embedded etcd share the process.
package bench
