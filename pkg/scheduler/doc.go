// Package scheduler decides ticks. One goroutine for each owned shard gives every tick its outcome and puts
// runs into the inboxes of nodes.
//
// # One worker
//
//	open ──► load ──► scan ──► rounds ◄──┐
//	  ▲                          │       │ events of the shard, time, nodes
//	  │  watermark changed,      ├───────┘
//	  └── events missed ◄────────┤
//	                             └──► fenced: stop
//
// A worker opens its shard with an empty commit. From then on, delayed writes of earlier workers fail. The
// worker loads the shard at the revision of that commit, and finds the active runs with a scan that begins
// after the commit. Then it decides in rounds. A round fixes one value of now. It decides tasks that are
// behind first, then everything else that is due, in (due time, task) order, then waiting runs. Each commit
// contains the watermark, so one write records what was decided and how far. Each shard has at most one
// commit in flight.
//
// # Guarantees
//
// A tick is decided at most once, whatever fails (G3), because deciding it and moving the watermark (or the
// entry's from) is one conditional write. No tick is lost (G4): the watermark moves only past decided
// ticks, and entries that it does not cover yet are decided first. An acknowledged pause, update or delete
// takes precedence (G7), because the commit of a tick compares the entry.
//
// There is no upper bound on lateness under overload or while etcd is unavailable. A worker keeps no state
// that it cannot load again.
//
// # Failures
//
//   - The shard or the session is lost (task.ErrFenced): the worker stops.
//   - Another writer changed the watermark (store.ErrMoved), or events may have been missed (errReload):
//     the worker opens and loads the shard again.
//   - etcd is unavailable, or the outcome of a commit is unknown: the worker tries again. The next opening
//     determines the outcome.
//   - The shard has no watermark (store.ErrDamaged): the worker stops and reports it.
package scheduler
