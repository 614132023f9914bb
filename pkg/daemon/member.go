package daemon

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/kv/embedded"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// memberMonitor reads the state of the embedded etcd at intervals. The node announces it, because the embedded
// etcd has no port on which other hosts could read it.
type memberMonitor struct {
	server *embedded.Server // nil: no etcd runs in this process
	store  *store.Store
	last   atomic.Pointer[task.Member] // the last state that was read; nil: none
}

// currentMember returns the state of the embedded etcd as it was last read, or nil if there is none.
func (m *memberMonitor) currentMember() *task.Member { return m.last.Load() }

// run reads the state every announceEvery until ctx ends.
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

// checkMember reads the state once. If that fails, the last state remains.
func (m *memberMonitor) checkMember(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, announceEvery)
	defer cancel()
	if member := m.store.OwnMember(ctx); member != nil {
		member.Socket = m.server.Endpoint()
		m.last.Store(member)
	}
}
