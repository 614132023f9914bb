// Package scheduler decides ticks: one goroutine per owned shard gives each
// tick its outcome and puts runs into the inboxes of nodes.
//
// # One worker
//
//	open ──► load ──► scan ──► rounds ◄──┐
//	  ▲                          │       │ events of the shard, time, nodes
//	  │  watermark moved,        ├───────┘
//	  └── events missed ◄────────┤
//	                             └──► fenced: stop
//
// A worker opens its shard with an empty commit, which ends every delayed write
// of earlier workers, loads at that commit's revision, and finds its active
// runs by a scan begun after the open. A round fixes one now: tasks that are
// behind come first, then all else that is due up to it, in (time, task) order;
// then waiting runs. Each commit carries the watermark, so that what is decided
// and how far is written in one step; one commit is in flight per shard.
//
// What it guarantees: a tick is decided at most once, whatever fails, because
// deciding it and moving the watermark (or the entry's from) is one conditional
// write. No tick is skipped over: the watermark moves only past decided ticks,
// and entries that it does not cover yet are looked at first. An acknowledged
// pause, update or delete wins, because a tick's commit compares the entry.
//
// What it does not: a bound on lateness under overload, or while etcd is away.
// It keeps no state but what it can load again.
package scheduler
