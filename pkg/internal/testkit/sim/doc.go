// Package sim lives through whole clusters in virtual time: real daemons, in one testing/synctest bubble, over an etcd in
// memory (kvmem) and a network in memory, while seeded dice kill them, cut them off, and make etcd worse than it is.
// Afterwards package check judges the complete history, and what the attempts themselves saw. A minute of a cluster's
// life takes about a second.
//
//	scenario ──faults──▶ nodes (pkg/daemon) ──links──▶ kvmem ──every revision──▶ check
//	users ──client──▶ network ──▶ their APIs            └── attempts ──▶ probes ──▶ check
//
// What is real: all of the daemon, its HTTP API and client, the etcd client's KV; data directories. What is not: etcd
// and its watches (kvmem, which passes the suite that etcd passes), TCP (pipes), processes (process.Fake takes their
// place, and ignores SIGTERM until its grace is over), the guardian (the simulation kills a dead daemon's attempts and
// writes cleared/, or does not, when the host died too).
//
// Faults (see faults): a daemon or host killed, drained, joined; a link cut both ways, deaf, or held (what was sent
// arrives later, though the caller gave up); watches stalled or broken; leases revoked, one or all; an etcd without a
// leader, whose leases are prolonged or all lost afterwards; compaction; no space; clocks that jump. And at any time, by
// the weather: requests and answers lost, writes delivered late or twice, slow calls and events.
//
// Users (see users.go, workloads.go) create, change, pause, trigger and delete tasks all the time. What else they do a seed
// draws from the workloads: nodes are drained, cordoned and resumed, at times within a second; runs are paused, resumed,
// cancelled and retried; schedules, zones and jitter are edited, twice in a row, and rolled back; overlap policies change;
// histories are short and tasks expire; runs have parts; namespaces are frozen; a task is created again under its name while
// the former one still runs; clocks jump by far more than the clock guard bears.
//
// One kind of write is never delivered twice: what only creates, a task or a person's run in the queue. Nothing but
// absence guards it, so that a copy that comes when the task is deleted, or the run has left the queue, makes it anew.
// Neither etcd's client nor a node sends such a write twice; a proxy that does would break this.
//
// After the trouble all is healed; within 20 s every due tick must have its outcome (G16). Then all tasks are paused,
// what runs may end, and the history is judged.
//
// A seed decides all choices of the simulation: nodes, tasks, calls, faults, fates of calls in the order in which they are
// made. Not decided by it are the order in which goroutines run and select picks, and the product's own random numbers
// (jitter, ids, placement), so that one seed does not always live through the same story. And a seed means another history
// as soon as there are other users or faults. So what a seed has found becomes a test with named events (see
// stories_test.go), and the seed is listed in testdata/seeds.txt: the tests and make sim run that list first.
//
// A process that is killed goes on in memory, cut off for ever, until it ends by itself: its successor gets a copy of its
// data directory. Not simulated: a frozen process (its timers run on; a held link comes close), a wrong clock of an executor
// (a clock that jumps is the scheduler's and the API's; executors go by the one of the simulation), and anything of the
// kernel. That is for chaos tests with real daemons.
//
// It has to notice when the protocol is broken: see Options.Mutate, package mutant, and TestMutants_AreCaught.
package sim
