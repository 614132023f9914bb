package kv

import (
	"context"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/wake"
)

// Mirror is a copy of all keys of a range, kept current by Follow. It may be late, but it never goes back: per key the
// higher mod revision wins, and a deletion counts with its revision. Run keeps it; everything else may be called at any
// time, from anywhere.
type Mirror struct {
	client *Client
	cfg    FollowConfig
	log    *zap.Logger
	ready  chan struct{}

	mu       sync.Mutex
	loaded   bool
	base     []*mvccpb.KeyValue          // sorted, and never changed: snapshots share it
	pending  map[string]*mvccpb.KeyValue // on top of base; nil is a deletion
	doubts   Doubts                      // keys that a list had otherwise
	revision int64
	signals  map[*subscription]struct{}
}

// Snapshot is the content of a range at one revision. It does not change, nor may its reader change it.
type Snapshot struct {
	// KVs are sorted by key.
	KVs []*mvccpb.KeyValue
	// Revision is 0 before the first list.
	Revision int64
}

// Get returns the value under key, or nil.
func (s Snapshot) Get(key string) *mvccpb.KeyValue {
	i, found := sort.Find(len(s.KVs), func(i int) int { return strings.Compare(key, string(s.KVs[i].Key)) })
	if !found {
		return nil
	}
	return s.KVs[i]
}

// NewMirror prepares a mirror of the range in cfg, which keeps apart from other watches; Run fills it.
func NewMirror(c *Client, cfg FollowConfig) *Mirror {
	cfg.Apart, cfg.PageSize, cfg.Echo = true, 0, true
	return &Mirror{
		client: c, cfg: cfg,
		log:     orNop(cfg.Logger).With(zap.String("range", orDefault(cfg.Name, cfg.Key))),
		ready:   make(chan struct{}),
		signals: map[*subscription]struct{}{},
	}
}

// Run keeps the mirror current until ctx ends, and returns its error. It is called once.
func (m *Mirror) Run(ctx context.Context) error {
	return Follow(ctx, m.client, m.cfg, func(b Batch) error {
		m.applyBatch(b)
		return nil
	})
}

// Ready is closed after the first list.
func (m *Mirror) Ready() <-chan struct{} { return m.ready }

// Snapshot returns the content as it is known.
func (m *Mirror) Snapshot() Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.settleDiffs()

	return Snapshot{KVs: m.base, Revision: m.revision}
}

// subscription is one call of Subscribe: a signal may be subscribed more than once.
type subscription struct{ signal wake.Signal }

// Subscribe has the mirror send a signal after each change of the content, or after several at once, until unsubscribe is
// called. It sends it at once if the mirror is loaded. A signal may be subscribed to several mirrors.
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

func (m *Mirror) applyBatch(b Batch) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if b.Echo {
		m.applyReplay(b)
		return
	}

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

// replaceAll takes a list, and says whether it brought anything new.
func (m *Mirror) replaceAll(b Batch) bool {
	m.settleDiffs()
	changed := !m.loaded || !slices.EqualFunc(m.base, b.KVs, same)

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

// compareList counts what the watch must have lost. What was written at or before the revision that it had told completely is
// lost for certain. What else the list has otherwise may be on its way: the watch tells of it soon, as an echo, or it is
// lost, as a later list finds.
func (m *Mirror) compareList(b Batch) {
	known, listed := Snapshot{KVs: m.base}, Snapshot{KVs: b.KVs}
	missed := m.doubts.Lost(orDefault(m.cfg.StallAfter, defaultStallAfter)) // events may be late, as long as a watch may be silent
	for _, kv := range b.KVs {
		switch {
		case same(known.Get(string(kv.Key)), kv):
		case kv.ModRevision <= m.revision:
			missed++
		default:
			m.doubts.Add(string(kv.Key), kv.ModRevision)
		}
	}

	for _, kv := range m.base {
		if listed.Get(string(kv.Key)) == nil {
			m.doubts.Add(string(kv.Key), kv.ModRevision+1)
		}
	}

	if missed > 0 {
		m.client.sight.repairs.Add(float64(missed))
		m.log.Warn("repaired a mirror whose watch had missed changes", zap.Int("keys", missed), zap.Int64("rev", b.Revision))
	}
}

// applyReplay takes what the watch tells after a list has told it.
func (m *Mirror) applyReplay(b Batch) {
	if len(b.Events) == 0 { // a new watch, which will not
		m.doubts.Clear()
	}

	for _, e := range b.Events {
		m.doubts.Echo(string(e.Kv.Key), e.Kv.ModRevision)
	}
}

// applyEvent takes one change. All changes up to m.revision are in, so one compare covers puts and deletions.
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

// settleDiffs merges what is pending into a new base, so that a burst of events costs one copy when somebody looks.
func (m *Mirror) settleDiffs() {
	if len(m.pending) == 0 {
		return
	}

	keys := slices.Sorted(maps.Keys(m.pending))
	merged := make([]*mvccpb.KeyValue, 0, len(m.base)+len(keys))
	rest := m.base
	for _, k := range keys {
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

// notifySubscribers tells the subscribers that the content has changed.
func (m *Mirror) notifySubscribers() {
	for s := range m.signals {
		s.signal.Send()
	}
}

// same compares two versions of a key; a mod revision stands for the whole.
func same(a, b *mvccpb.KeyValue) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ModRevision == b.ModRevision && string(a.Key) == string(b.Key)
}
