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

// stateController applies the states that operators request (ready, cordoned, draining), and makes the executor hand
// back or resume accordingly.
type stateController struct {
	node, instance string
	store          *store.Store
	state          *datadir.State
	presence       *presence
	executor       *executor.Executor
	eligibility    *eligibility
	announce       wake.Signal
	log            *zap.Logger

	mu sync.Mutex // held while the state is passed to the executor, so that the last one counts
}

// requestState sets the state that an operator requests, and returns when it is announced in etcd. The state survives
// restarts. by is who requested it. If it cannot be announced before ctx ends, it is kept all the same, and the error
// wraps task.ErrUnavailable.
func (c *stateController) requestState(ctx context.Context, state string, by *task.Actor) error {
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

// run follows the requests that other nodes write on behalf of an operator, applies them and deletes them, until ctx
// ends.
func (c *stateController) run(ctx context.Context) error {
	var obeyed int64 // the mod revision of the last request that was applied
	return c.store.FollowNodeRequests(ctx, c.node, time.Minute, func(r store.NodeRequest) error {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()

		// A request for a former instance, or one that was applied before, is only deleted.
		known := slices.Contains([]string{task.NodeReady, task.NodeCordoned, task.NodeDraining}, r.State)
		if r.Instance == c.instance && r.Mod > obeyed && known {
			c.log.Info("received a request to change state", zap.String("node", c.node), zap.String("state", r.State), zap.Stringer("by", r.By))

			if err := c.requestState(ctx, r.State, r.By); err != nil {
				c.log.Warn("could not change to the requested state", zap.String("node", c.node), zap.String("state", r.State), zap.Error(err))
				return nil // the API withdraws the request, or the next list shows it again
			}

			obeyed = r.Mod
		}

		if _, err := c.store.DeleteNodeRequest(ctx, c.node, r.Mod); err != nil {
			c.log.Warn("could not delete a completed state request", zap.String("node", c.node), zap.Error(err))
		}

		return nil
	})
}

// requestTimeout is the time limit for applying one request.
const requestTimeout = 10 * time.Second

// applyRequest makes the executor hand back or resume, according to the node's state. It hands back, too, if etcd went
// back, because attempts in such an inbox may have run before.
func (c *stateController) applyRequest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Wanted() == task.NodeDraining || c.eligibility.errorFor(task.IneligibleRestored) != nil {
		c.executor.HandBack()
	} else if !c.presence.isDraining() {
		c.executor.Resume()
	}
}

// drainAll announces that the node stops. Later requests cannot make the executor resume.
func (c *stateController) drainAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.presence.startDrain()
}
