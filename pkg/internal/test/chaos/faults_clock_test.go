package chaos_test

import (
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
)

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
