// Package sim runs whole clusters in virtual time: real daemons, in one testing/synctest bubble, on an in-memory
// etcd (kvmem) and an in-memory network. Seeded random numbers determine when daemons are killed or cut off, and
// which faults etcd has. Afterwards package check judges the complete history, and what the attempts themselves
// recorded. A minute of a cluster's life takes about a second.
//
//	scenario ──faults──▶ nodes (pkg/daemon) ──links──▶ kvmem ──every revision──▶ check
//	users ──client──▶ network ──▶ their APIs            └── attempts ──▶ probes ──▶ check
//
// Real are the whole daemon with its HTTP API, the client, the KV of etcd's client, and the data directories.
// Replaced are:
//
//   - etcd and its watches, by kvmem, which passes the same conformance suite as etcd
//   - TCP, by pipes
//   - processes, by process.Fake, which ignores SIGTERM until its grace period is over
//   - HTTP attempts and their targets, by a runner that records which requests arrive (requests.go)
//   - the guardian: the simulation kills a dead daemon's attempts and writes cleared/, or does not if the host
//     died too
//
// Faults (see faults): a daemon or a host is killed, drained, or joins. A link is cut both ways, loses answers
// (deaf), or is held: what was sent arrives later, even if the caller has given up. Watches stall or break. One
// lease is revoked, or all. etcd has no leader, after which all leases are either extended or lost. etcd is
// compacted or out of space. Clocks jump. In addition, at any time, with the probabilities of the weather: requests
// and answers get lost, writes arrive late or twice, calls and events are slow.
//
// Users (see users.go, workloads.go) create, change, pause, trigger and delete tasks all the time. A seed selects
// what else they do from the workloads: nodes are drained, cordoned and resumed, sometimes within a second; runs
// are paused, resumed, cancelled and retried; schedules, zones and jitter are edited, sometimes twice in a row, and
// rolled back; overlap policies change; requests go to targets that refuse them, do not answer, or ask to wait;
// histories are short and tasks expire; records move to ledgers, some chunks are written by hand, and nodes are killed in each
// phase of that; runs have parts; namespaces are frozen; a task is created again under its name
// while the former one still runs; tasks run after others, in chains and fans that change and whose records are damaged by hand; tasks are workflows with maps, cleanup and steps that hang, which are cancelled, forced, paused, retried and edited, while nodes are killed in each phase of that; tasks have alerts, dead runs are retried and dismissed, and a receiver comes and goes; clocks jump by far more than the clock guard tolerates; rights of users are taken away and given back, so that the checker can judge that no write
// commits without them (G27).
//
// Every write of the API may be delivered twice, also one that only creates, such as a task, or a manual run in the
// queue: it requires that its audit record does not exist, so the copy changes nothing. What a node itself only
// creates is never delivered twice. Neither etcd's client nor a node sends such a write twice.
//
// At the end, all faults are removed. Within 20 s every due tick must have its outcome (G16). Then all tasks are
// paused, active runs may end, and the API is asked about the past of each task (answers.go): an answer may say that the
// records are gone, but nothing else than what happened (G31). Then the history is judged.
//
// RunRestore (restore.go) is a simulation of restores. The store is copied, goes on, is lost, and becomes the copy again, with the transactions
// of a restore. The checker judges the history of the backup, continued by that after the restore (G68).
//
// RunLists (lists.go) is another simulation: while nodes are killed, drained and cut off, tasks are listed without pause.
// Package listcheck judges each list by the history (G30).
//
// A seed determines all choices of the simulation: nodes, tasks, calls, faults, and the fates of calls in the order
// in which they are made. It does not determine the order in which goroutines run, the case that select picks, or
// the product's own random numbers (jitter, ids, placement). So the same seed does not always produce the same
// history, and every change of users or faults changes the histories of all seeds. A failure that a seed has found
// therefore becomes a test with explicit events (see stories_test.go), and the seed is added to testdata/seeds.txt,
// which the tests and make sim run first.
//
// A process that is killed continues in memory, cut off forever, until it ends by itself. Its successor gets a copy
// of its data directory. Not simulated are a frozen process (its timers continue; a held link comes close), a wrong
// clock of an executor (a clock that jumps is that of the scheduler and the API; executors use the clock of the
// simulation), and the kernel. Package chaos tests these with real daemons.
//
// The simulation must detect a broken Carillon: see package mutant and TestMutants_AreCaught.
package sim
