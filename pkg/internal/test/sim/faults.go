package sim

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// fault is something that can go wrong. begin draws what it needs from the scenario's random numbers. It returns a
// function that ends the fault, or nil if the fault is over at once.
type fault struct {
	name   string // as in Options.Only and in the counters
	weight int    // how often it is drawn, relative to the others
	begin  func(w *world) (end func(w *world))
}

// allFaults lists all faults, except for those of workloads.
var allFaults = []fault{
	{"kill", 6, func(w *world) func(*world) { return w.killOne(false) }},
	{"kill host", 3, func(w *world) func(*world) { return w.killOne(true) }},
	{"drain", 4, drainOne},
	{"join", 2, joinOne},
	{"cut", 5, linkFault(cut)},
	{"deaf", 4, linkFault(deaf)},
	{"held", 5, linkFault(held)},
	{"stall watches", 5, stallOne},
	{"break watches", 5, func(w *world) func(*world) {
		if n := w.someNode(); n != nil {
			n.proc.link.breakWatches()
		}
		return nil
	}},
	{"revoke a lease", 5, revokeOne},
	{"revoke all leases", 2, func(w *world) func(*world) {
		for _, id := range w.store.Leases() {
			w.store.Revoke(id)
		}
		return nil
	}},
	{"etcd without a leader", 3, func(w *world) func(*world) {
		w.store.Freeze()
		// A new leader of etcd extends all leases, or all expire while there is no leader.
		extend := w.rng.IntN(3) > 0
		return func(w *world) { w.store.Thaw(extend) }
	}},
	{"compact", 6, compactStore},
	{"etcd full", 2, func(w *world) func(*world) {
		w.full = true
		w.store.SetFull(true)
		return func(w *world) { w.store.SetFull(false) }
	}},
	{"clock", 3, skewOne},
}

// Faults returns the names of the counters of all faults, including those of workloads.
func Faults() []string {
	var list []string
	for _, f := range allFaults {
		list = append(list, "fault "+f.name)
	}

	for _, l := range allWorkloads {
		if l.fault.name != "" {
			list = append(list, "fault "+l.fault.name)
		}
	}

	return list
}

// someNode draws a node whose daemon runs; nil if there is none.
func (w *world) someNode() *node {
	var up []*node
	for _, name := range w.names {
		if w.nodes[name].proc != nil {
			up = append(up, w.nodes[name])
		}
	}

	if len(up) == 0 {
		return nil
	}

	return pickRandom(w.rng, up)
}

// runningNodes returns how many daemons run.
func (w *world) runningNodes() (n int) {
	for _, one := range w.nodes {
		if one.proc != nil {
			n++
		}
	}

	return n
}

// killOne kills a daemon, or its host with it, and starts it again when the fault ends.
func (w *world) killOne(host bool) func(*world) {
	n := w.someNode()
	if n == nil {
		return nil
	}

	n.killDaemon(host)

	return func(*world) { n.restartWhenClean() }
}

// restartWhenClean starts a daemon unless the former one has not ended yet. Then endFaults starts it.
func (n *node) restartWhenClean() {
	if n.proc == nil && isClosed(n.former) {
		n.startDaemon()
	}
}

// drainOne drains a node and starts it again when the fault ends. At least one other node must run.
func drainOne(w *world) func(*world) {
	n := w.someNode()
	if n == nil || w.runningNodes() < 2 {
		return nil
	}

	n.drainDaemon()

	return func(*world) { n.restartWhenClean() }
}

// joinOne adds a node, up to maxNodes.
func joinOne(w *world) func(*world) {
	if len(w.nodes) >= maxNodes {
		return nil
	}
	w.addNode().startDaemon()
	return nil
}

// linkFault returns a fault that puts the link of a node into a mode, in half of the cases together with its
// network.
func linkFault(m mode) func(*world) func(*world) {
	return func(w *world) func(*world) {
		n := w.someNode()
		if n == nil {
			return nil
		}
		if now, _ := n.proc.link.modeAndChange(); now != modeOpen {
			return nil // another fault has the link, and ends it
		}

		l, silent := n.proc.link, w.rng.IntN(2) == 0
		w.logLine("> the link of %s: mode %d, silent %t", n.name, m, silent)
		l.setMode(m)

		if silent { // the whole host is cut off, not only its connection to etcd
			w.net.setSilent(n.address, true)
		}

		return func(w *world) {
			w.logLine("> the link of %s is open again", n.name)
			l.setMode(modeOpen)
			w.net.setSilent(n.address, false)
		}
	}
}

// stallOne stalls the watches of a node, without breaking them.
func stallOne(w *world) func(*world) {
	n := w.someNode()
	if n == nil {
		return nil
	}

	l := n.proc.link
	w.logLine("> the watches of %s stall", n.name)
	l.setStalled(true)

	return func(*world) {
		w.logLine("> the watches of %s go on", n.name)
		l.setStalled(false)
	}
}

// revokeOne revokes one lease, as an operator or a crash detection does.
func revokeOne(w *world) func(*world) {
	if ids := w.store.Leases(); len(ids) > 0 {
		w.store.Revoke(pickRandom(w.rng, ids))
	}
	return nil
}

// compactStore compacts up to one of the last 50 revisions, so that watches that are behind cannot resume.
func compactStore(w *world) func(*world) {
	rev := w.store.Revision() - w.rng.Int64N(50)
	ctx, cancel := context.WithTimeout(w.life, time.Second)
	defer cancel()

	if _, err := w.etcd.Compact(ctx, rev); err != nil && err != rpctypes.ErrCompacted {
		w.logLine("> not compacted: %v", err)
	}

	return nil
}

// skewOne makes the clock of a node jump: by less than the clock guard detects, or with the workload "far clocks"
// also by far more.
func skewOne(w *world) func(*world) {
	n := w.nodes[pickRandom(w.rng, w.names)]
	d := durationBetween(w.rng, -maxSkew, maxSkew)
	if w.opts.farClocks && w.rng.IntN(3) > 0 {
		d = pickRandom(w.rng, []time.Duration{-1, 1}) * durationBetween(w.rng, 3*time.Second, 40*time.Second)
	}

	w.logLine("> the clock of %s jumps to %+d ms", n.name, d.Milliseconds())
	w.skewed = max(w.skewed, d.Abs())
	n.skew.Store(int64(d))

	return func(*world) { n.skew.Store(0) }
}
