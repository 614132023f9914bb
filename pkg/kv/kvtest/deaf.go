package kvtest

import (
	"context"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
)

// Deaf stands before a client's watches and drops events without a word: what no etcd should do, and what nothing but
// reading again finds out.
type Deaf struct {
	clientv3.Watcher
	mu      sync.Mutex
	drop    func(key string) bool
	dropped atomic.Int64
}

// Deafen puts one before the watches that c opens from now on.
func Deafen(c *kv.Client) *Deaf {
	d := &Deaf{Watcher: c.Watcher}
	c.Watcher = d
	return d
}

// Drop has the events of some keys dropped from now on, on all watches; nil: of none.
func (d *Deaf) Drop(which func(key string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop = which
}

// Dropped is how many events were.
func (d *Deaf) Dropped() int64 { return d.dropped.Load() }

// Watch is the Watcher's.
func (d *Deaf) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in, out := d.Watcher.Watch(ctx, key, opts...), make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for r := range in {
			if some := len(r.Events); some > 0 {
				if r.Events = d.pass(r.Events); len(r.Events) == 0 {
					continue // it would look like a progress notice
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

func (d *Deaf) pass(events []*clientv3.Event) []*clientv3.Event {
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
