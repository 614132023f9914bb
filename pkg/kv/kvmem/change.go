package kvmem

import (
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// change is a request that writes: all of it gets the revision after the store's, if it writes anything. mu is held from
// its begin to its end.
type change struct {
	*Store
	revision int64
	events   []*mvccpb.Event
}

func (s *Store) beginChange() *change { return &change{Store: s, revision: s.revision + 1} }

// readRevision is the revision that the request itself reads: its own once it has written.
func (c *change) readRevision() int64 {
	if len(c.events) > 0 {
		return c.revision
	}
	return c.Store.revision
}

func (c *change) putKey(key string, value []byte, lease int64) {
	v := version{mod: c.revision, create: c.revision, number: 1, value: value, lease: lease}
	if it := c.items[key]; it != nil {
		if old := it.versionAt(c.revision); old != nil {
			v.create, v.number = old.create, old.number+1
		}
	}

	c.addVersion(key, v)
	c.events = append(c.events, &mvccpb.Event{Type: mvccpb.Event_PUT, Kv: v.keyValue(key)})
}

func (c *change) deleteRange(r span) (n int64) {
	var keys []string
	c.visitRange(r, c.revision, func(key string, _ *version) { keys = append(keys, key) })

	for _, key := range keys {
		c.addVersion(key, version{mod: c.revision, deleted: true})
		c.events = append(c.events, &mvccpb.Event{
			Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: c.revision},
		})
	}

	return int64(len(keys))
}

// commitChange makes the change the store's latest, and tells the watches.
func (c *change) commitChange() {
	if len(c.events) == 0 {
		return
	}

	c.Store.revision = c.revision
	c.log = append(c.log, c.events)
	for w := range c.watches {
		if c.revision >= w.from {
			w.notifyEvents(c.revision, filterEvents(c.events, w.wantsEvent))
		}
	}
}
