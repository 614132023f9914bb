package kvtest

import (
	"context"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
)

// Deaf is a Watcher that drops events silently. etcd should never do that, and only a later list can detect it (see
// kv.RepairsMetric).
type Deaf struct {
	clientv3.Watcher
	mu      sync.Mutex
	drop    func(key string) bool // selects the keys whose events are dropped; nil: none
	dropped atomic.Int64
}

// Deafen replaces the Watcher of c, so that the events of watches which are opened from now on can be dropped.
func Deafen(c *kv.Client) *Deaf {
	d := &Deaf{Watcher: c.Watcher}
	c.Watcher = d
	return d
}

// Drop drops the events of the selected keys from now on, on all watches. With nil, it drops none.
func (d *Deaf) Drop(which func(key string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop = which
}

// Dropped returns how many events were dropped.
func (d *Deaf) Dropped() int64 { return d.dropped.Load() }

// Watch implements clientv3.Watcher.
func (d *Deaf) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in, out := d.Watcher.Watch(ctx, key, opts...), make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for r := range in {
			if some := len(r.Events); some > 0 {
				if r.Events = d.filterEvents(r.Events); len(r.Events) == 0 {
					continue // an empty response would look like a progress notification
				}
			}

			select {
			case out <- r:
			case <-ctx.Done():
				return
			}
		}
	}()

	return out
}

// filterEvents returns the events that are not dropped, and counts the others.
func (d *Deaf) filterEvents(events []*clientv3.Event) []*clientv3.Event {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.drop == nil {
		return events
	}

	var rest []*clientv3.Event
	for _, e := range events {
		if d.drop(string(e.Kv.Key)) {
			d.dropped.Add(1)
		} else {
			rest = append(rest, e)
		}
	}

	return rest
}
