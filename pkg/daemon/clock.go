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

// clockLook is the interval at which the clock is compared with those of other nodes.
const clockLook = 500 * time.Millisecond

// clockMonitor judges the node's clock: when another node announces its clock,
// every clockLook, and before each commit. It sets the eligibility accordingly. The methods may be called from any
// goroutine.
type clockMonitor struct {
	node        string
	env         Environment
	eligibility *eligibility
	looked      chan struct{} // closed when the clock has been compared once

	mu    sync.Mutex
	guard *clockguard.Guard
}

// newClockMonitor returns a monitor that has not compared the clock yet. An announcement that was in etcd before the
// node started may be as old as a lease and an announcement interval.
func newClockMonitor(cfg Config, env Environment, f *eligibility) *clockMonitor {
	return &clockMonitor{
		node: cfg.Name, env: env, eligibility: f, looked: make(chan struct{}),
		guard: clockguard.New(cfg.LeaseTTL.Std() + announceEvery),
	}
}

// run judges the clock every clockLook until ctx ends.
func (c *clockMonitor) run(ctx context.Context) error {
	tick := time.NewTicker(clockLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.looked:
			_ = c.judgeClock((*clockguard.Guard).Look) // judgeClock sets the eligibility
		default: // the other nodes are not known yet
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// observeNodes passes the records of all present nodes to the guard. Only followFleet calls it, so looked is closed
// once.
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

// judgeClock reads both clocks, lets the guard judge them, and sets the eligibility if the verdict has changed.
func (c *clockMonitor) judgeClock(ask func(*clockguard.Guard, clockguard.Reading) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	was := c.guard.Err()
	err := ask(c.guard, clockguard.Reading{Wall: c.env.Now(), Boot: c.env.bootTime()})
	if (was == nil) != (err == nil) {
		c.eligibility.setReason(task.IneligibleClock, err)
	}

	return err
}

// checkClock returns why the clock cannot be trusted now, or nil. It is called before
// each commit, and before the API writes a time to an entry. It is cheap.
func (c *clockMonitor) checkClock() error { return c.judgeClock((*clockguard.Guard).Step) }

// checkTrusted is checkClock for the API. It also returns an error if the clock has not been compared
// yet.
func (c *clockMonitor) checkTrusted() error {
	select {
	case <-c.looked:
		return c.checkClock()
	default:
		return errors.New("it has not been compared with those of the other nodes yet")
	}
}
