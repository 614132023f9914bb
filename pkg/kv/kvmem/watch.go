package kvmem

import (
	"context"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/carillonhq/carillon/pkg/wake"
)

// maxRevisions is how many revisions etcd combines into one response to a watch that catches up.
const maxRevisions = 1000

// watch is one open watch. The mutex of the store protects its description. Its own mutex protects the responses that
// wait to be delivered.
type watch struct {
	span
	from     int64                       // the first revision to deliver
	asked    int64                       // the revision that the client requested; 0: none
	prev     bool                        // deliver previous values
	noPut    bool                        // omit puts
	noDelete bool                        // omit deletions
	stream   string                      // the stream that carries the watch; see streamOf
	out      chan clientv3.WatchResponse // the channel that Watch returned
	gone     chan struct{}               // closed by Become

	mu    sync.Mutex
	queue []clientv3.WatchResponse // the responses that have not been delivered
	more  wake.Signal              // one slot; receives a value when queue has grown
}

// wantsEvent reports whether the watch delivers an event.
func (w *watch) wantsEvent(e *mvccpb.Event) bool {
	if e.Type == mvccpb.Event_PUT && w.noPut || e.Type == mvccpb.Event_DELETE && w.noDelete {
		return false
	}
	return w.contains(string(e.Kv.Key))
}

// enqueueResponse queues a response for serveWatch.
func (w *watch) enqueueResponse(r clientv3.WatchResponse) {
	w.mu.Lock()
	w.queue = append(w.queue, r)
	w.mu.Unlock()

	w.more.Send()
}

// notifyEvents queues a response with events, if there are any. revision is the revision of the store.
func (w *watch) notifyEvents(revision int64, events []*mvccpb.Event) {
	if len(events) == 0 {
		return
	}

	told := make([]*clientv3.Event, len(events))
	for i, e := range events {
		told[i] = (*clientv3.Event)(&mvccpb.Event{Type: e.Type, Kv: e.Kv})
	}

	w.enqueueResponse(clientv3.WatchResponse{Header: headerAt(revision), Events: told})
}

// watcher implements clientv3.Watcher.
type watcher struct {
	clientView

	gate   sync.Mutex // guards closed, so that no watch is added after Close
	closed bool
	done   chan struct{} // closed by Close
	wg     sync.WaitGroup
}

var _ clientv3.Watcher = (*watcher)(nil)

// Watch opens a watch. Its channel is closed when ctx ends, the client or the watcher is closed,
// or the watch is cancelled because of a compaction. Like the client of etcd, it returns after
// the server has opened the watch.
func (wa *watcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpWatch(key, opts...)
	w := &watch{
		span: spanOf(op.KeyBytes(), op.RangeBytes()), from: op.Rev(), asked: op.Rev(), prev: op.IsPrevKV(),
		noPut: op.IsFilterPut(), noDelete: op.IsFilterDelete(), stream: streamOf(ctx),
		out: make(chan clientv3.WatchResponse, 1), gone: make(chan struct{}), more: wake.NewSignal(),
	}
	if w.key == "" {
		w.key = "\x00" // the smallest key
	}

	ctx, cancel := context.WithCancel(ctx)
	unlink := context.AfterFunc(wa.life, cancel)
	end := func() { unlink(); cancel(); close(w.out) }

	if w.isEmpty() || !wa.addWatch() { // etcd refuses a range that cannot contain a key
		end()
		return w.out
	}

	if wa.openWatch(ctx, w, op.IsCreatedNotify()) != nil {
		wa.wg.Done()
		end()
		return w.out
	}

	go func() {
		defer wa.wg.Done()
		defer end()

		wa.serveWatch(ctx, w)
		wa.mu.Lock()
		delete(wa.watches, w)
		wa.mu.Unlock()
	}()

	return w.out
}

// addWatch counts one more watch and returns true, unless the watcher is closed.
func (wa *watcher) addWatch() bool {
	wa.gate.Lock()
	defer wa.gate.Unlock()

	if !wa.closed {
		wa.wg.Add(1)
	}

	return !wa.closed
}

// Close ends all watches and waits until they have ended.
func (wa *watcher) Close() error {
	wa.gate.Lock()
	if !wa.closed {
		wa.closed = true
		close(wa.done)
	}
	wa.gate.Unlock()

	wa.wg.Wait()

	return nil
}

// openWatch adds a watch to the store and queues the events that it has to catch up with. From the same moment on,
// under the mutex of the store, changes are queued for it, so that it misses none.
func (wa *watcher) openWatch(ctx context.Context, w *watch, created bool) error {
	if err := wa.lockStore(ctx); err != nil {
		return err
	}

	defer wa.mu.Unlock()

	if created {
		w.enqueueResponse(clientv3.WatchResponse{Header: wa.newHeader(), Created: true})
	}

	switch {
	case w.from == 0:
		w.from = wa.revision + 1
	case w.from <= wa.revision && w.from < wa.compacted:
		w.enqueueResponse(clientv3.WatchResponse{Header: wa.newHeader(), Canceled: true, CompactRevision: wa.compacted})
		return nil
	}

	// A watch that catches up gets many revisions in each response, as from etcd.
	wa.watches[w] = struct{}{}
	batches := wa.eventsSince(w.from, w.wantsEvent)
	for len(batches) > 0 {
		n := min(maxRevisions, len(batches))
		var events []*mvccpb.Event
		for _, b := range batches[:n] {
			events = append(events, b...)
		}

		batches = batches[n:]
		w.notifyEvents(wa.revision, events)
	}

	return nil
}

// serveWatch delivers the responses of a watch until ctx ends, the watcher is closed, or the watch is cancelled.
func (wa *watcher) serveWatch(ctx context.Context, w *watch) {
	for {
		w.mu.Lock()
		queue := w.queue
		w.queue = nil
		w.mu.Unlock()

		for _, r := range queue {
			if w.prev {
				wa.addPrevious(r.Events)
			}

			select {
			case w.out <- r:
			case <-ctx.Done():
				return
			case <-w.gone:
				return
			case <-wa.done:
				return
			}

			if r.Canceled {
				return
			}
		}

		if len(queue) > 0 {
			continue
		}

		select {
		case <-w.more:
		case <-ctx.Done():
			return
		case <-w.gone:
			return
		case <-wa.done:
			return
		}
	}
}

// addPrevious adds the previous values of the keys, unless they have been compacted by now. Like etcd, it reads them
// when the events are delivered.
func (wa *watcher) addPrevious(events []*clientv3.Event) {
	wa.mu.Lock()
	defer wa.mu.Unlock()
	for _, e := range events {
		before := e.Kv.ModRevision - 1
		if it := wa.items[string(e.Kv.Key)]; it != nil && before >= wa.compacted && !e.IsCreate() {
			if v := it.versionAt(before); v != nil {
				e.PrevKv = v.keyValue(string(e.Kv.Key))
			}
		}
	}
}

// RequestProgress sends the revision of the store to every watch of the stream. Like etcd, it sends nothing if one of
// them was opened at a future revision.
func (wa *watcher) RequestProgress(ctx context.Context) error {
	if err := wa.lockStore(ctx); err != nil {
		return clientv3.ContextError(ctx, err)
	}

	defer wa.mu.Unlock()

	stream := streamOf(ctx)

	var all []*watch
	for w := range wa.watches {
		if w.stream != stream {
			continue
		}
		if w.asked > wa.revision {
			return nil
		}

		all = append(all, w)
	}

	for _, w := range all {
		w.enqueueResponse(clientv3.WatchResponse{Header: wa.newHeader()})
	}

	return nil
}

// streamOf returns the stream of a watch. As in the client of etcd, it is determined by the metadata of the context.
func streamOf(ctx context.Context) string {
	if md, ok := metadata.FromOutgoingContext(ctx); ok {
		return fmt.Sprintf("%+v", map[string][]string(md))
	}
	return ""
}
