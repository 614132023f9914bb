package chaos_test

import (
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
)

var networkFaults = []*fault{
	{name: "node-cut-off", group: "network", quick: true, what: "a node cut off from etcd and from the other nodes", hold: lasting(4, 9), inject: onNode(
		func(_ *world, _ *injection, n *node) error {
			n.setLinkFault(linkCut)
			return n.set(func(c *control) { c.CutPeers = true })
		},
		func(_ *world, n *node) error {
			n.setLinkFault(linkFault{})
			return n.set(func(c *control) { c.CutPeers = false })
		})},
	{name: "node-cut-off-past-lost-after", group: "network", what: "the same, for longer than lost_after", hold: lasting(15, 17), inject: withLinkFault(linkCut)},
	{name: "node-deaf", group: "network", what: "a node whose requests reach etcd, but no answer comes", hold: lasting(4, 9), inject: withLinkFault(linkCutDown)},
	{name: "node-mute", group: "network", what: "a node whose requests do not reach etcd, while watches go on", hold: lasting(4, 9), inject: withLinkFault(linkCutUp)},
	{name: "delay", group: "network", what: "500 ms of round trip between a node and etcd", hold: lasting(4, 8), inject: withLinkFault(linkSlow)},
	{name: "loss", group: "network", what: "30 % of what goes between a node and etcd comes late and holds up the rest, as lost packets do", hold: lasting(4, 8), inject: withLinkFault(linkLossy)},
	{name: "resets", group: "network", what: "connections between a node and etcd are reset within a second", hold: lasting(4, 8), inject: withLinkFault(linkResetting)},
	{name: "peers-cut-off", group: "network", what: "a node that cannot reach the other nodes, but etcd", hold: lasting(3, 6),
		inject: controlled(func(c *control) { c.CutPeers = true }, func(c *control) { c.CutPeers = false })},
	{name: "watches-stall", group: "network", what: "no watch of a node delivers events", hold: lasting(4, 12),
		inject: controlled(func(c *control) { c.StallWatches = true }, func(c *control) { c.StallWatches = false })},
	{name: "answers-lost", group: "network", quick: true, what: "of 30 % of a node's writes the answer is lost after they took place", hold: lasting(4, 8),
		inject: controlled(func(c *control) { c.LoseAnswers = 30 }, func(c *control) { c.LoseAnswers = 0 })},
	{name: "writes-late", group: "network", what: "20 % of a node's writes fail, and are delivered up to four seconds later", hold: lasting(4, 8),
		inject: controlled(func(c *control) { c.DelayWrites, c.DelayBy = 20, 4*time.Second }, func(c *control) { c.DelayWrites = 0 })},
	{name: "answers-lost-writes-late", group: "network", what: "both, at all nodes", hold: lasting(3, 6), alone: true, inject: lossEverywhere},
}

// withLinkFault returns a fault in the network between a node and etcd.
func withLinkFault(f linkFault) func(*world, *injection) (func() error, error) {
	return onNode(
		func(_ *world, _ *injection, n *node) error { n.setLinkFault(f); return nil },
		func(_ *world, n *node) error { n.setLinkFault(linkFault{}); return nil })
}

// controlled returns a fault that changes a node's control file.
func controlled(do, undo func(*control)) func(*world, *injection) (func() error, error) {
	return onNode(
		func(_ *world, _ *injection, n *node) error { return n.set(do) },
		func(_ *world, n *node) error { return n.set(undo) })
}

func lossEverywhere(w *world, _ *injection) (func() error, error) {
	all := w.up()
	set := func(lose, delay int) (err error) {
		for _, n := range all {
			if e := n.set(func(c *control) { c.LoseAnswers, c.DelayWrites, c.DelayBy = lose, delay, 3*time.Second }); e != nil {
				err = e
			}
		}

		return err
	}

	return func() error { return set(0, 0) }, set(15, 10)
}

// If a node whose clock is ahead made one commit, it would block its shards for as long as the clock is ahead.
var clockFaults = []*fault{
	clockFault("clock-hour-ahead", "a node's clock jumps ahead an hour", time.Hour, 0),
	clockFault("clock-ten-years-ahead", "a node's clock jumps ahead ten years", 10*365*24*time.Hour, 0),
	clockFault("clock-hour-behind", "a node's clock jumps back an hour", -time.Hour, 0),
	clockFault("clock-drifts", "a node's clock gains half a second each second", 0, .5),
}

// clockFault moves a node's clock, and notes which times of that clock are wrong.
func clockFault(name, what string, offset time.Duration, drift float64) *fault {
	const margin = time.Second // until the daemon has read its control file

	inject := func(w *world, in *injection) (func() error, error) {
		n, err := w.pick(in)
		if err != nil {
			return nil, err
		}

		began := time.Now()
		heal := func() error {
			lasted := time.Since(began)
			w.wrongClocks = append(w.wrongClocks, check.WrongClock{
				Node: n.name,
				From: began.Add(offset - margin),
				To:   began.Add(offset + lasted + time.Duration(drift*float64(lasted)) + margin),
			})

			return n.set(func(c *control) { c.Offset, c.Drift = 0, 0 })
		}

		return heal, n.set(func(c *control) { c.Offset, c.Drift, c.Since = offset, drift, began.UTC() })
	}

	return &fault{name: name, group: "clock", what: what, hold: lasting(4, 8), inject: inject}
}
