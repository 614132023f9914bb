package chaos_test

import "time"

// If a node whose clock is ahead made one commit, it would block its shards for as long as the clock is ahead.
var clockFaults = []*fault{
	clockFault("clock-hour-ahead", "a node's clock jumps ahead an hour", time.Hour, 0),
	clockFault("clock-ten-years-ahead", "a node's clock jumps ahead ten years", 10*365*24*time.Hour, 0),
	clockFault("clock-hour-behind", "a node's clock jumps back an hour", -time.Hour, 0),
	clockFault("clock-drifts", "a node's clock gains half a second each second", 0, .5),
}

func clockFault(name, what string, offset time.Duration, drift float64) *fault {
	return &fault{name: name, group: "clock", what: what, hold: lasting(4, 8),
		inject: controlled(
			func(c *control) { c.Offset, c.Drift, c.Since = offset, drift, time.Now().UTC() },
			func(c *control) { c.Offset, c.Drift = 0, 0 })}
}
