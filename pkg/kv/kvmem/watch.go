package kvmem

import (
	"context"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// mostRevisions is how many revisions etcd puts into one response to a watch that catches up.
const mostRevisions = 1000

// watch is one range that somebody watches. The store's mu guards what it is; its own what it has to say.
type watch struct {
	span
	from     int64 // it wants what happens from this revision on
	asked    int64 // the revision that it was asked for; 0: none
	prev     bool
	noPut    bool
	noDelete bool
	stream   string
	out      chan clientv3.WatchResponse

	mu    sync.Mutex
	queue []clientv3.WatchResponse
	more  chan struct{} // one slot
}

func (w *watch) wantsEvent(e *mvccpb.Event) bool {
	if e.Type == mvccpb.Event_PUT && w.noPut || e.Type == mvccpb.Event_DELETE && w.noDelete {
		return false
	}
	return w.contains(string(e.Kv.Key))
}

func (w *watch) enqueueResponse(r clientv3.WatchResponse) {
	w.mu.Lock()
	w.queue = append(w.queue, r)
	w.mu.Unlock()

	select {
	case w.more <- struct{}{}:
	default:
	}
}

// notifyEvents says what happened; revision is the store's by then.
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

// watcher is clientv3.Watcher.
type watcher struct {
	door

	gate   sync.Mutex // no watch is added once it is closed
	closed bool
	done   chan struct{}
	wg     sync.WaitGroup
}

var _ clientv3.Watcher = (*watcher)(nil)

func (s *watcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpWatch(key, opts...)
	w := &watch{
		span: spanOf(op.KeyBytes(), op.RangeBytes()), from: op.Rev(), asked: op.Rev(), prev: op.IsPrevKV(),
		noPut: op.IsFilterPut(), noDelete: op.IsFilterDelete(), stream: streamOf(ctx),
		out: make(chan clientv3.WatchResponse, 1), more: make(chan struct{}, 1),
	}
	if w.key == "" {
		w.key = "\x00" // the smallest
	}

	ctx, cancel := context.WithCancel(ctx)
	unlink := context.AfterFunc(s.life, cancel)
	end := func() { unlink(); cancel(); close(w.out) }

	if w.isEmpty() || !s.addWatch() { // etcd refuses a range in which no key can be
		end()
		return w.out
	}

	if s.openWatch(ctx, w, op.IsCreatedNotify()) != nil {
		s.wg.Done()
		end()
		return w.out
	}

	go func() {
		defer s.wg.Done()
		defer end()

		s.serveWatch(ctx, w)
		s.mu.Lock()
		delete(s.watches, w)
		s.mu.Unlock()
	}()

	return w.out
}

// addWatch counts one more watch, unless the watcher is closed.
func (s *watcher) addWatch() bool {
	s.gate.Lock()
	defer s.gate.Unlock()

	if !s.closed {
		s.wg.Add(1)
	}

	return !s.closed
}

// Close ends all watches, and waits for them.
func (s *watcher) Close() error {
	s.gate.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
	}
	s.gate.Unlock()

	s.wg.Wait()

	return nil
}

// openWatch enters a watch, and has it say first what had happened before.
func (s *watcher) openWatch(ctx context.Context, w *watch, created bool) error {
	if err := s.lockStore(ctx); err != nil {
		return err
	}

	defer s.mu.Unlock()

	if created {
		w.enqueueResponse(clientv3.WatchResponse{Header: s.newHeader(), Created: true})
	}

	switch {
	case w.from == 0:
		w.from = s.revision + 1
	case w.from <= s.revision && w.from < s.compacted:
		w.enqueueResponse(clientv3.WatchResponse{Header: s.newHeader(), Canceled: true, CompactRevision: s.compacted})
		return nil
	}

	s.watches[w] = struct{}{}
	batches := s.eventsSince(w.from, w.wantsEvent)
	for len(batches) > 0 {
		n := min(mostRevisions, len(batches))
		var events []*mvccpb.Event
		for _, b := range batches[:n] {
			events = append(events, b...)
		}

		batches = batches[n:]
		w.notifyEvents(s.revision, events)
	}

	return nil
}

// serveWatch hands out what a watch says until ctx ends, or the watch.
func (s *watcher) serveWatch(ctx context.Context, w *watch) {
	for {
		w.mu.Lock()
		queue := w.queue
		w.queue = nil
		w.mu.Unlock()

		for _, r := range queue {
			if w.prev {
				s.addPrevious(r.Events)
			}

			select {
			case w.out <- r:
			case <-ctx.Done():
				return
			case <-s.done:
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
		case <-s.done:
			return
		}
	}
}

// addPrevious looks up what the keys held before, unless that is compacted away by now.
func (s *watcher) addPrevious(events []*clientv3.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		before := e.Kv.ModRevision - 1
		if it := s.items[string(e.Kv.Key)]; it != nil && before >= s.compacted && !e.IsCreate() {
			if v := it.versionAt(before); v != nil {
				e.PrevKv = v.keyValue(string(e.Kv.Key))
			}
		}
	}
}

// RequestProgress has every watch of the stream told how far the store is, unless one of them was asked for a later
// revision than that.
func (s *watcher) RequestProgress(ctx context.Context) error {
	if err := s.lockStore(ctx); err != nil {
		return clientv3.ContextError(ctx, err)
	}

	defer s.mu.Unlock()

	stream := streamOf(ctx)

	var all []*watch
	for w := range s.watches {
		if w.stream != stream {
			continue
		}
		if w.asked > s.revision {
			return nil
		}

		all = append(all, w)
	}

	for _, w := range all {
		w.enqueueResponse(clientv3.WatchResponse{Header: s.newHeader()})
	}

	return nil
}

// streamOf names the stream of a watch as etcd's client does: by the metadata of its context.
func streamOf(ctx context.Context) string {
	if md, ok := metadata.FromOutgoingContext(ctx); ok {
		return fmt.Sprintf("%+v", map[string][]string(md))
	}
	return ""
}
