package kv

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/wake"
)

// Mirror is a copy of all keys of a range, which Follow keeps up to date. It may be late, but it never goes back: for
// each key the higher mod revision wins, and a deletion counts with its revision. Run updates the mirror. All other
// methods may be called at any time and by any goroutine.
//
// A mirror compares each list with what its watch has reported, and counts the changes that the watch has lost as
// repairs.
type Mirror struct {
	client *Client
	cfg    FollowConfig
	log    *zap.Logger
	ready  chan struct{} // closed after the first list

	mu           sync.Mutex
	loaded       bool                        // the first list has been applied
	base         []*mvccpb.KeyValue          // sorted by key; the slice is never modified, because snapshots share it
	pending      map[string]*mvccpb.KeyValue // changes since base; a nil value is a deletion
	pendingDiffs PendingDiffs                // listed keys whose events the watch has not delivered yet
	revision     int64                       // all changes up to this revision have been applied
	signals      map[*subscription]struct{}  // the current subscriptions
}

// Snapshot is the content of a range at one revision. It never changes, and the caller must not modify it.
type Snapshot struct {
	// KVs are sorted by key.
	KVs []*mvccpb.KeyValue
	// Revision is 0 before the first list.
	Revision int64
}

// Get returns the entry of key, or nil if the key is absent.
func (s Snapshot) Get(key string) *mvccpb.KeyValue {
	i, found := sort.Find(len(s.KVs), func(i int) int { return strings.Compare(key, string(s.KVs[i].Key)) })
	if !found {
		return nil
	}
	return s.KVs[i]
}

// Change is a difference between two snapshots of a range.
type Change struct {
	Key string
	// KV is the entry in the newer snapshot, nil if the key was deleted. The receiver must not modify it.
	KV *mvccpb.KeyValue
}

// ChangesSince returns the keys that were created, changed or deleted since an older snapshot of the same range. An unchanged
// key costs the comparison of two pointers, unless the mirror has listed its range in between.
func (s Snapshot) ChangesSince(older Snapshot) []Change {
	var changes []Change
	before, after := older.KVs, s.KVs

	for i, j := 0, 0; i < len(before) || j < len(after); {
		for i < len(before) && j < len(after) && before[i] == after[j] {
			i, j = i+1, j+1
		}

		order := 0
		switch {
		case i == len(before) && j == len(after):
			return changes
		case i == len(before):
			order = 1
		case j == len(after):
			order = -1
		default:
			order = bytes.Compare(before[i].Key, after[j].Key)
		}

		switch {
		case order < 0: // only the older snapshot has the key
			changes = append(changes, Change{Key: string(before[i].Key)})
			i++
		case order > 0: // only the newer one has it
			changes = append(changes, Change{Key: string(after[j].Key), KV: after[j]})
			j++
		default:
			if before[i].ModRevision != after[j].ModRevision {
				changes = append(changes, Change{Key: string(after[j].Key), KV: after[j]})
			}
			i, j = i+1, j+1
		}
	}

	return changes
}

// NewMirror returns a mirror of the range in cfg. It stays empty until Run is called. Its watch uses the stream of
// the ranges that set FollowConfig.Dedicated, even if cfg does not.
func NewMirror(c *Client, cfg FollowConfig) *Mirror {
	cfg.Dedicated, cfg.PageSize, cfg.Replayed = true, 0, true
	return &Mirror{
		client: c, cfg: cfg,
		log:     orNop(cfg.Logger).With(zap.String("range", orDefault(cfg.Name, cfg.Key))),
		ready:   make(chan struct{}),
		signals: map[*subscription]struct{}{},
	}
}

// Run keeps the mirror up to date until ctx ends, and returns the error of ctx. It must be called only once.
func (m *Mirror) Run(ctx context.Context) error {
	return Follow(ctx, m.client, m.cfg, func(b Batch) error {
		m.applyBatch(b)
		return nil
	})
}

// Ready returns a channel that is closed after the first list.
func (m *Mirror) Ready() <-chan struct{} { return m.ready }

// Snapshot returns the content as far as the mirror has received it.
func (m *Mirror) Snapshot() Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.settleDiffs()

	return Snapshot{KVs: m.base, Revision: m.revision}
}

// subscription is one call of Subscribe. Subscriptions are identified by their pointer, because a signal may be
// subscribed more than once.
type subscription struct{ signal wake.Signal }

// Subscribe sends a signal after each change of the content, or once after several changes, until unsubscribe is
// called. It sends the signal immediately if the mirror is loaded. A signal may be subscribed to several mirrors.
func (m *Mirror) Subscribe(signal wake.Signal) (unsubscribe func()) {
	s := &subscription{signal}

	m.mu.Lock()
	defer m.mu.Unlock()

	m.signals[s] = struct{}{}
	if m.loaded {
		signal.Send()
	}

	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.signals, s)
	}
}

// applyBatch applies one step of Follow and notifies the subscribers if it changed the content.
func (m *Mirror) applyBatch(b Batch) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if b.Replayed {
		m.applyReplay(b)
		return
	}

	// Follow does not deliver older batches. If it did, the mirror must not go back.
	if b.Revision < m.revision {
		return
	}

	changed := false
	if b.Reset {
		changed = m.replaceAll(b)
	} else {
		for _, e := range b.Events {
			changed = m.applyEvent(e) || changed
		}
	}

	m.revision = b.Revision

	if changed {
		m.notifySubscribers()
	}
}

// replaceAll replaces the content by a list, and reports whether the content changed.
func (m *Mirror) replaceAll(b Batch) bool {
	m.settleDiffs()
	changed := !m.loaded || !slices.EqualFunc(m.base, b.KVs, sameVersion)

	if m.loaded {
		m.compareList(b)
	}

	m.base = b.KVs
	if !m.loaded {
		m.loaded = true
		close(m.ready)
	}

	return changed
}

// compareList compares a list with the content and counts the changes that the watch has lost.
//
// A listed key with a mod revision up to m.revision is different only if the watch has lost its event, because the
// watch has delivered everything up to that revision. A key that is newer, or that is missing from the list, may have
// an event in flight. Such a key is pending until the watch replays the event (see PendingDiffs), and counts as lost if
// that has not happened by a later list.
func (m *Mirror) compareList(b Batch) {
	known, listed := Snapshot{KVs: m.base}, Snapshot{KVs: b.KVs}
	// An event may be as late as a watch may be silent. Differences that are older are lost events.
	missed := m.pendingDiffs.Lost(orDefault(m.cfg.StallAfter, defaultStallAfter))
	for _, kv := range b.KVs {
		switch {
		case sameVersion(known.Get(string(kv.Key)), kv):
		case kv.ModRevision <= m.revision:
			missed++
		default:
			m.pendingDiffs.Add(string(kv.Key), kv.ModRevision)
		}
	}

	// The revision of a deletion is unknown, but it is higher than that of the last put.
	for _, kv := range m.base {
		if listed.Get(string(kv.Key)) == nil {
			m.pendingDiffs.Add(string(kv.Key), kv.ModRevision+1)
		}
	}

	if missed > 0 {
		m.client.health.repairs.Add(float64(missed))
		m.log.Warn("repaired a mirror whose watch had missed changes", zap.Int("keys", missed), zap.Int64("rev", b.Revision))
	}
}

// applyReplay processes events that the watch delivers after a list has delivered their result, and resolves the
// differences of their keys. A batch without events announces a new watch. It starts at the current revision and
// replays nothing, so no difference can be resolved any more.
func (m *Mirror) applyReplay(b Batch) {
	if len(b.Events) == 0 {
		m.pendingDiffs.Clear()
	}

	for _, e := range b.Events {
		m.pendingDiffs.Resolve(string(e.Kv.Key), e.Kv.ModRevision)
	}
}

// applyEvent applies one change, and reports whether it is new. All changes up to m.revision have been applied, so
// one comparison is sufficient for puts and deletions.
func (m *Mirror) applyEvent(e *clientv3.Event) bool {
	if e.Kv.ModRevision <= m.revision {
		return false
	}

	if m.pending == nil {
		m.pending = map[string]*mvccpb.KeyValue{}
	}

	if e.Type == clientv3.EventTypeDelete {
		m.pending[string(e.Kv.Key)] = nil
	} else {
		m.pending[string(e.Kv.Key)] = e.Kv
	}

	return true
}

// settleDiffs merges the pending changes into a new base. It is called only when the content is read or compared, so
// that a burst of events costs one copy instead of one for each event.
func (m *Mirror) settleDiffs() {
	if len(m.pending) == 0 {
		return
	}

	keys := slices.Sorted(maps.Keys(m.pending))
	merged := make([]*mvccpb.KeyValue, 0, len(m.base)+len(keys))
	rest := m.base
	for _, k := range keys {
		// Copy the keys before k, and leave out the old version of k.
		n := sort.Search(len(rest), func(i int) bool { return string(rest[i].Key) >= k })
		merged, rest = append(merged, rest[:n]...), rest[n:]
		if len(rest) > 0 && string(rest[0].Key) == k {
			rest = rest[1:]
		}

		if kv := m.pending[k]; kv != nil {
			merged = append(merged, kv)
		}
	}

	m.base, m.pending = append(merged, rest...), nil
}

// notifySubscribers sends a signal to each subscriber.
func (m *Mirror) notifySubscribers() {
	for s := range m.signals {
		s.signal.Send()
	}
}

// sameVersion reports whether two versions of a key are equal. The mod revision identifies a version of a key.
func sameVersion(a, b *mvccpb.KeyValue) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ModRevision == b.ModRevision && string(a.Key) == string(b.Key)
}

// PendingDiffs holds keys whose listed state differs from what the watch had reported before the list. For each of them
// there are two possibilities: either the event is still in flight and will be replayed (see Batch.Replayed), or the
// watch has lost it. A key that stays different for too long is counted as lost.
//
// The zero value is empty. PendingDiffs must be used by one goroutine at a time.
type PendingDiffs struct {
	keys map[string]pendingDiff
}

// pendingDiff describes one key whose listed state the watch has not reported.
type pendingDiff struct {
	first int64     // an event of the key at this revision or later resolves the difference
	since time.Time // when the list found the difference
}

// Add records that the listed state of key differs. An event of the key at revision first or later resolves it.
func (d *PendingDiffs) Add(key string, first int64) {
	if d.keys == nil {
		d.keys = map[string]pendingDiff{}
	}
	d.keys[key] = pendingDiff{first, time.Now()}
}

// Resolve processes an event that the watch replays after a list. It resolves the difference of the key if the event
// explains it.
func (d *PendingDiffs) Resolve(key string, revision int64) {
	if known, ok := d.keys[key]; ok && revision >= known.first {
		delete(d.keys, key)
	}
}

// Clear removes all differences. It is called when a new watch begins, because that watch replays none of the events.
func (d *PendingDiffs) Clear() { d.keys = nil }

// Lost removes the differences that are at least as old as patience, and returns their number. Their events are lost.
func (d *PendingDiffs) Lost(patience time.Duration) (n int) {
	for key, known := range d.keys {
		if time.Since(known.since) >= patience {
			delete(d.keys, key)
			n++
		}
	}

	return n
}
