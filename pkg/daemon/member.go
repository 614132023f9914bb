package daemon

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// memberMonitor asks the etcd in this process now and then for its state, so that the
// node can announce what nobody else can ask.
type memberMonitor struct {
	server *kv.Server // nil: no etcd runs in this process
	store  *store.Store
	last   atomic.Pointer[task.Member]
}

// currentMember is the state of the etcd in this process a moment ago; nil if there is none.
func (m *memberMonitor) currentMember() *task.Member { return m.last.Load() }

// run asks until ctx ends.
func (m *memberMonitor) run(ctx context.Context) error {
	if m.server == nil {
		<-ctx.Done()
		return ctx.Err()
	}

	tick := time.NewTicker(announceEvery)
	defer tick.Stop()

	for {
		m.checkMember(ctx)

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// checkMember asks once. The last answer stays if there is none.
func (m *memberMonitor) checkMember(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, announceEvery)
	defer cancel()
	if member := m.store.OwnMember(ctx); member != nil {
		member.Socket = m.server.Endpoint()
		m.last.Store(member)
	}
}
