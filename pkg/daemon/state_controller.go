package daemon

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// stateController has the node take the states that operators want, and the executor do
// what the node's state says.
type stateController struct {
	node, instance string
	store          *store.Store
	state          *datadir.State
	presence       *presence
	executor       *executor.Executor
	eligibility    *eligibility
	announce       wake.Signal
	log            *zap.Logger

	mu sync.Mutex // held while the executor is told what the node's state is
}

// requestState has the node take a state that an operator wants, kept over restarts,
// and returns once etcd has it.
func (c *stateController) requestState(ctx context.Context, state, by string) error {
	if err := c.state.SetWanted(state, by); err != nil {
		return fmt.Errorf("keep the state of node %s: %w", c.node, err)
	}

	c.applyRequest()
	c.announce.Send()

	for c.presence.lastTold().State != state {
		if !clock.Sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("node %s keeps the state %s, but cannot announce it: %w", c.node, state, task.ErrUnavailable)
		}
	}

	return nil
}

// run has the node take the states that other nodes ask for in an operator's
// name.
func (c *stateController) run(ctx context.Context) error {
	var obeyed int64 // mod revision of the last one
	return c.store.FollowNodeRequests(ctx, c.node, time.Minute, func(r store.NodeRequest) error {
		ctx, cancel := context.WithTimeout(ctx, obeyWithin)
		defer cancel()

		// What is meant for a former process, or was obeyed before, is only deleted.
		known := slices.Contains([]string{task.NodeReady, task.NodeCordoned, task.NodeDraining}, r.State)
		if r.Instance == c.instance && r.Mod > obeyed && known {
			c.log.Info("received a request to change state", zap.String("node", c.node), zap.String("state", r.State), zap.String("by", r.By))

			if err := c.requestState(ctx, r.State, r.By); err != nil {
				c.log.Warn("could not change to the requested state", zap.String("node", c.node), zap.String("state", r.State), zap.Error(err))
				return nil // who asked withdraws the request, or it is told again
			}

			obeyed = r.Mod
		}

		if _, err := c.store.DeleteNodeRequest(ctx, c.node, r.Mod); err != nil {
			c.log.Warn("could not delete a completed state request", zap.String("node", c.node), zap.Error(err))
		}

		return nil
	})
}

// obeyWithin is how long a request to this node may take.
const obeyWithin = 10 * time.Second

// applyRequest has the executor do what the node's state says. What is in the inbox
// of an etcd that went back may have run before.
func (c *stateController) applyRequest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Wanted() == task.NodeDraining || c.eligibility.errorFor(task.IneligibleRestored) != nil {
		c.executor.HandBack()
	} else if !c.presence.isDraining() {
		c.executor.Resume()
	}
}

// drainAll has the node take no more shards and runs, as it stops.
func (c *stateController) drainAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.presence.startDrain()
}
