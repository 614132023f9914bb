package daemon

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// member is how the etcd in this process fared a moment ago; nil if there is none.
func (n *Node) member() *task.Member { return n.ownMember.Load() }

// watchMember asks the etcd in this process now and then, so that the node can
// announce what nobody else can ask.
func (n *Node) watchMember(ctx context.Context) error {
	if n.server == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, announceEvery)
		if m := n.store.OwnMember(asking); m != nil {
			m.Socket = n.server.Endpoint()
			n.ownMember.Store(m)
		}
		cancel()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
