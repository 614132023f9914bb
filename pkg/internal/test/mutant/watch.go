package mutant

import (
	"context"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
)

// watched is a Watcher that edits the responses of its watches, and can deliver responses that etcd never sent.
type watched struct {
	clientv3.Watcher
	see  func(key string, r clientv3.WatchResponse) clientv3.WatchResponse    // nil: responses are passed on unchanged
	open func(key string, forged chan clientv3.WatchResponse) (closed func()) // nil: no forged responses; called when a watch opens, returns what to call when it ends
}

// Watch passes the responses of etcd and the forged ones through see.
func (w watched) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in := w.Watcher.Watch(ctx, key, opts...)
	out := make(chan clientv3.WatchResponse)
	var forged chan clientv3.WatchResponse
	closed := func() {}
	if w.open != nil {
		forged = make(chan clientv3.WatchResponse, 16)
		closed = w.open(key, forged)
	}

	go func() { // ends when etcd's watch ends, or with ctx
		defer close(out)
		defer closed()
		for {
			var r clientv3.WatchResponse
			var ok bool
			select {
			case r, ok = <-in:
				if !ok {
					return
				}
			case r = <-forged:
			}

			if w.see != nil {
				r = w.see(key, r)
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

// showRecords shows a node other values of records, in what it reads and in what its watches deliver. show returns the
// value for a record; it is the record's own if the node is to see that.
func showRecords(c *clientv3.Client, show func(e *mvccpb.KeyValue) []byte) {
	shown := func(e *mvccpb.KeyValue) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{
			Key: e.Key, CreateRevision: e.CreateRevision, ModRevision: e.ModRevision, Version: e.Version, Lease: e.Lease, Value: show(e),
		}
	}

	c.KV = editReads(c.KV, func(_ clientv3.Op, resp *clientv3.GetResponse) {
		kvs := make([]*mvccpb.KeyValue, len(resp.Kvs))
		for i, e := range resp.Kvs {
			kvs[i] = shown(e)
		}
		resp.Kvs = kvs
	})

	c.Watcher = watched{Watcher: c.Watcher, see: func(_ string, r clientv3.WatchResponse) clientv3.WatchResponse {
		events := make([]*clientv3.Event, len(r.Events))
		for i, ev := range r.Events {
			events[i] = &clientv3.Event{Type: ev.Type, Kv: shown(ev.Kv), PrevKv: ev.PrevKv}
		}

		r.Events = events
		return r
	}}
}

// anyonesAttempt shows a node every attempt in its inbox as one for its own instance. A restarted daemon then
// starts the attempts of the former one.
func anyonesAttempt(k keysOf) injector {
	return func(node string, c *clientv3.Client) {
		inbox := k.Inbox(node)
		mine := &own{key: k.Node(node)}
		c.KV = mine.learnFrom(c.KV)

		showRecords(c, func(e *mvccpb.KeyValue) []byte {
			instance := mine.instanceName()
			if instance == "" || !strings.HasPrefix(string(e.Key), inbox) || len(e.Value) == 0 {
				return e.Value
			}

			return editObject(e.Value, func(m map[string]any) { m["instance"] = instance })
		})
	}
}

// own remembers the instance that a node writes under its own key.
type own struct {
	key string // the node's own key

	mu   sync.Mutex
	name string // its instance; "" before it has joined
}

// instanceName returns the node's instance; "" before it has joined.
func (o *own) instanceName() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.name
}

// learnFrom returns a KV that reads the instance from each write of the node's key.
func (o *own) learnFrom(kv clientv3.KV) clientv3.KV {
	return etcdhook.KV(kv, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		return next(ctx, editedTxns(op, func(t txn) txn {
			for _, op := range t.Then {
				if op.IsPut() && string(op.KeyBytes()) == o.key {
					o.learnInstance(op.ValueBytes())
				}
			}

			return t
		}))
	})
}

// learnInstance stores the instance of a node's record.
func (o *own) learnInstance(value []byte) {
	editObject(value, func(m map[string]any) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.name = asText(m["instance"])
	})
}

// startBeforeCommit delivers to a node the attempts that its own commits put into its inbox, before it sends these
// commits. Every fourth of them is then dropped, so that its attempts start without a record.
func startBeforeCommit(k keysOf) injector {
	return func(node string, c *clientv3.Client) {
		inbox := k.Inbox(node)
		var mu sync.Mutex
		var listeners = map[chan clientv3.WatchResponse]bool{}
		commits := 0

		// Remember the watches of the inbox, through which the forged events are delivered.
		c.Watcher = watched{Watcher: c.Watcher, open: func(key string, forged chan clientv3.WatchResponse) func() {
			if key != inbox {
				return func() {}
			}

			mu.Lock()
			defer mu.Unlock()

			listeners[forged] = true

			return func() {
				mu.Lock()
				defer mu.Unlock()
				delete(listeners, forged)
			}
		}}

		newest := int64(0)
		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			var events []*clientv3.Event

			// Find the attempts that the node's own commits put into its inbox.
			editedTxns(op, func(t txn) txn {
				for _, op := range t.Then {
					if key := op.KeyBytes(); op.IsPut() && strings.HasPrefix(string(key), inbox) && isCommit(k, t) {
						events = append(events, &clientv3.Event{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{Key: key, Value: op.ValueBytes()}})
					}
				}

				return t
			})

			mu.Lock()

			// The forged events carry the revision that the commit will get if nothing else is written before it.
			if len(events) > 0 && newest > 0 {
				commits++

				for _, e := range events {
					e.Kv.CreateRevision, e.Kv.ModRevision, e.Kv.Version = newest+1, newest+1, 1
				}

				// A forged event is optional: never block on a watch that is not read.
				for l := range listeners {
					select {
					case l <- clientv3.WatchResponse{Events: events}:
					default:
					}
				}
			}

			lost := len(events) > 0 && commits > 0 && commits%4 == 0
			mu.Unlock()

			// The caller sees an unknown outcome, and etcd never receives the commit.
			if lost {
				return clientv3.OpResponse{}, context.DeadlineExceeded
			}

			r, err := next(ctx, op)
			if err == nil && op.IsTxn() {
				mu.Lock()
				newest = max(newest, r.Txn().Header.GetRevision())
				mu.Unlock()
			}

			return r, err
		})
	}
}

// deafWatches removes all events from a node's watches, so that they only show that they are alive. It also refuses
// the lists of a shard's keys, by which the node would find out what the watches have lost.
func deafWatches(k keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		c.Watcher = watched{Watcher: c.Watcher, see: func(_ string, r clientv3.WatchResponse) clientv3.WatchResponse {
			r.Events = nil
			return r
		}}

		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			if op.IsGet() && op.IsKeysOnly() && strings.HasPrefix(string(op.KeyBytes()), k.Shards()) {
				return clientv3.OpResponse{}, rpctypes.ErrTooManyRequests
			}
			return next(ctx, op)
		})
	}
}
