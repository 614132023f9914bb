package sim

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/clock"
)

// linkedWatcher passes watches through the link. They are late, stall and break with it.
type linkedWatcher struct {
	clientv3.Watcher
	link *link
}

// Watch opens a watch. As with etcd's client, it blocks until the link is open, and returns a closed channel if it
// fails.
func (w linkedWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	l := w.link
	out := make(chan clientv3.WatchResponse, 1)
	l.mu.Lock()
	broken := l.broken
	l.mu.Unlock()

	if !l.deliverEvent(ctx, broken, 0) {
		close(out)
		return out
	}

	// Deliver each response after its delay, while the link is open. A broken link ends the watch without another
	// response, as a lost connection does.
	ctx, cancel := context.WithCancel(ctx)
	in := w.Watcher.Watch(ctx, key, opts...)
	l.world.background.Go(func() {
		defer close(out)
		defer cancel()
		for {
			var r clientv3.WatchResponse
			var ok bool
			select {
			case r, ok = <-in:
			case <-broken:
			}

			if !ok || !l.deliverEvent(ctx, broken, l.eventDelay()) {
				return
			}

			select {
			case out <- r:
				l.world.deliveries.add(&r)
				if r.CompactRevision > 0 {
					l.world.countReached("watch compacted")
				}
			case <-broken:
				return
			case <-ctx.Done():
				return
			}
		}
	})

	return out
}

// eventDelay draws how long an event takes.
func (l *link) eventDelay() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.rng.IntN(1000) < l.weather.slow {
		return time.Duration(l.rng.IntN(3000)) * time.Millisecond
	}

	return time.Duration(50+l.rng.IntN(1000)) * time.Microsecond
}

// deliverEvent waits until the link lets a watch deliver a response. It returns false if the watch breaks first.
func (l *link) deliverEvent(ctx context.Context, broken <-chan struct{}, delay time.Duration) bool {
	if !clock.Sleep(ctx, delay) {
		return false
	}

	for {
		l.mu.Lock()
		free, moved := l.mode == modeOpen && !l.stalled, l.moved
		l.mu.Unlock()

		if free {
			return true
		}

		select {
		case <-moved:
		case <-broken:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// RequestProgress requests a progress notification. A link that is not open loses the request.
func (w linkedWatcher) RequestProgress(ctx context.Context) error {
	if !clock.Sleep(ctx, w.link.eventDelay()) {
		return ctx.Err()
	}
	if m, _ := w.link.modeAndChange(); m != modeOpen {
		return nil // sent, but lost
	}

	return w.Watcher.RequestProgress(ctx)
}

// deliveries records what watches have delivered, and when.
type deliveries struct {
	wanted bool // set before the first node starts

	mu  sync.Mutex
	all []delivery
}

// delivery is a response of a watch, or several at one time. Everything up to the revision has been delivered.
type delivery struct {
	at       time.Time
	revision int64
}

// add records a response that is delivered now.
func (d *deliveries) add(r *clientv3.WatchResponse) {
	if !d.wanted || r.Created || r.Err() != nil {
		return
	}

	one := delivery{time.Now(), r.Header.Revision}
	if n := len(r.Events); n > 0 {
		one.revision = r.Events[n-1].Kv.ModRevision
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, one)
}
