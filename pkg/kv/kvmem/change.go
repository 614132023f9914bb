package kvmem

import (
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// change is a request that writes. If it writes anything, all its writes get the next revision. The mutex of the
// store is held from its creation until commitChange.
type change struct {
	*Store
	revision int64           // the revision of the writes
	events   []*mvccpb.Event // the writes so far
}

// beginChange starts a change.
func (s *Store) beginChange() *change { return &change{Store: s, revision: s.revision + 1} }

// readRevision returns the revision at which the request itself reads. It is that of the change as soon as the
// request has written anything, so that a read sees the writes before it.
func (c *change) readRevision() int64 {
	if len(c.events) > 0 {
		return c.revision
	}
	return c.Store.revision
}

// putKey writes a key and attaches it to a lease, or to none if lease is 0.
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

// deleteRange deletes the keys of a range and returns their number.
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

// commitChange makes the writes visible and sends their events to the watches. Without writes, it does nothing.
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
