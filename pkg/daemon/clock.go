package daemon

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/daemon/clockguard"
	"github.com/carillonhq/carillon/pkg/task"
)

// clockLook is how often the clock is compared with the others'.
const clockLook = 500 * time.Millisecond

// clockMonitor has the node's clock judged: with each announcement of another node,
// now and then, and before each commit.
type clockMonitor struct {
	node        string
	env         Environment
	eligibility *eligibility
	looked      chan struct{} // closed when the clock has been judged once

	mu    sync.Mutex
	guard *clockguard.Guard
}

func newClockMonitor(cfg Config, env Environment, f *eligibility) *clockMonitor {
	return &clockMonitor{
		node: cfg.Name, env: env, eligibility: f, looked: make(chan struct{}),
		guard: clockguard.New(cfg.LeaseTTL.Std() + announceEvery),
	}
}

// run judges the clock now and then, until ctx ends.
func (c *clockMonitor) run(ctx context.Context) error {
	tick := time.NewTicker(clockLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.looked:
			_ = c.judgeClock((*clockguard.Guard).Look) // eligibility keeps the result
		default: // before the others are known there is nothing to compare with
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// observeNodes takes the records of all nodes that are present.
func (c *clockMonitor) observeNodes(all []task.Node) {
	others := slices.DeleteFunc(slices.Clone(all), func(n task.Node) bool { return n.Name == c.node })
	_ = c.judgeClock(func(g *clockguard.Guard, r clockguard.Reading) error {
		g.Hear(r, others)
		return g.Look(r)
	})

	select {
	case <-c.looked:
	default:
		close(c.looked)
	}
}

// judgeClock asks the guard, and has what it says known.
func (c *clockMonitor) judgeClock(ask func(*clockguard.Guard, clockguard.Reading) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	was := c.guard.Err()
	err := ask(c.guard, clockguard.Reading{Wall: c.env.Now(), Boot: c.env.bootTime()})
	if (was == nil) != (err == nil) {
		c.eligibility.setReason(task.UnfitClock, err)
	}

	return err
}

// checkClock says why the clock is not to be trusted just now: it is asked before
// each commit, and before the API writes the time into an entry.
func (c *clockMonitor) checkClock() error { return c.judgeClock((*clockguard.Guard).Step) }

// checkTrusted is check for the API: a clock that nobody has looked at yet is not to
// be trusted either.
func (c *clockMonitor) checkTrusted() error {
	select {
	case <-c.looked:
		return c.checkClock()
	default:
		return errors.New("it has not been compared with the other nodes' yet")
	}
}
