package daemon

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/daemon/clockguard"
	"github.com/carillonhq/carillon/pkg/task"
)

// clockLook is how often the clock is compared with the others'.
const clockLook = 500 * time.Millisecond

// clockCare has the node's clock judged: with each announcement of another node,
// now and then, and before each commit.
type clockCare struct {
	node    string
	wall    func() time.Time
	boot    func() time.Duration
	fitness *fitness
	looked  chan struct{} // closed when the clock has been judged once

	mu    sync.Mutex
	guard *clockguard.Guard
}

func newClockCare(cfg Config, outside Outside, f *fitness) *clockCare {
	c := &clockCare{node: cfg.Name, wall: outside.Now, boot: outside.Boot, fitness: f, looked: make(chan struct{}),
		guard: clockguard.New(cfg.LeaseTTL.Std() + announceEvery)}
	if c.boot == nil {
		c.boot = proctree.BootTime
	}
	return c
}

// run judges the clock now and then, until ctx ends.
func (c *clockCare) run(ctx context.Context) error {
	tick := time.NewTicker(clockLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.looked:
			_ = c.judge((*clockguard.Guard).Look) // fitness has it
		default: // before the others are known there is nothing to compare with
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// hear takes the records of all nodes that are present.
func (c *clockCare) hear(all []task.Node) {
	others := slices.DeleteFunc(slices.Clone(all), func(n task.Node) bool { return n.Name == c.node })
	_ = c.judge(func(g *clockguard.Guard, r clockguard.Reading) error {
		g.Hear(r, others)
		return g.Look(r)
	})
	select {
	case <-c.looked:
	default:
		close(c.looked)
	}
}

// judge asks the guard, and has what it says known.
func (c *clockCare) judge(ask func(*clockguard.Guard, clockguard.Reading) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.guard.Err()
	err := ask(c.guard, clockguard.Reading{Wall: c.wall(), Boot: c.boot()})
	if (was == nil) != (err == nil) {
		c.fitness.set(task.UnfitClock, err)
	}
	return err
}

// check says why the clock is not to be trusted just now: it is asked before
// each commit, and before the API writes the time into an entry.
func (c *clockCare) check() error { return c.judge((*clockguard.Guard).Step) }

// trusted is check for the API: a clock that nobody has looked at yet is not to
// be trusted either.
func (c *clockCare) trusted() error {
	select {
	case <-c.looked:
		return c.check()
	default:
		return errors.New("it has not been compared with the other nodes' yet")
	}
}
