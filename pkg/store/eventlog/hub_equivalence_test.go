package eventlog_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// walk is a random history with readers that join, leave and resume at any place. Each reader of the hub has a twin
// with a watch of its own.
type walk struct {
	*hub
	t        *testing.T
	r        *rand.Rand
	compacts bool
	log      *reading // reads all events at once, so it misses nothing
	pairs    []*pair
	seen     *seen

	watchMu  sync.Mutex
	watching int // how many readers have a watch of their own
}

// pair is a reader of the hub and its twin.
type pair struct {
	query     eventlog.Query
	hub, twin *reading
}

// seen counts what has happened in all walks, to show that they test something.
type seen struct{ events, gaps, behind, refused, resumed int }

func TestHub_GivesReadersWhatTheirOwnWatchWouldGive(t *testing.T) {
	var total seen

	for seed := range uint64(24) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newWalk(t, seed, &total).run() })
		})
	}

	if total.events == 0 || total.gaps == 0 || total.behind == 0 || total.refused == 0 || total.resumed == 0 {
		t.Errorf("the walks have seen %+v", total)
	}
}

// newWalk returns a walk with a running hub. The walks of odd seeds compact etcd. Then a reader of the hub may get events
// that its twin has missed.
func newWalk(t *testing.T, seed uint64, total *seen) *walk {
	memory := kvmem.New(kvmem.Config{MinTTL: 1})
	t.Cleanup(memory.Close)

	// The log has a client whose watches do not break.
	log := clusterOf(t, kvtest.ClientOf(t, memory)).log
	w := &walk{t: t, r: rand.New(rand.NewPCG(seed, 1)), compacts: seed%2 == 1, seen: total}
	w.hub = newHubOf(t, clusterOf(t, kvtest.ClientOf(t, memory)), 8+w.r.IntN(40))
	w.log = startReading(t, nil, func(ctx context.Context, apply func(eventlog.Batch) error) error {
		return log.FollowEvents(ctx, eventlog.Query{After: &task.Place{}}, apply)
	})

	return w
}

func (w *walk) run() {
	settle()

	for range 150 {
		w.step()
		synctest.Wait()
	}

	w.write()
	time.Sleep(2 * time.Minute) // slow readers catch up
	synctest.Wait()

	for _, p := range w.pairs {
		w.end(p)
	}

	if w.watching != 0 {
		w.t.Errorf("%d watches were not released", w.watching)
	}

	w.log.stopReading()
	w.seen.behind += int(w.Stats().Behind)
}

// step makes a random step.
func (w *walk) step() {
	switch what := w.r.IntN(100); {
	case what < 60:
		w.write()
	case what < 75 && len(w.pairs) < 8:
		w.join(w.anyPlace())
	case what < 82 && len(w.pairs) > 0:
		w.resume()
	case what < 87:
		w.watches.breakAll()
	case what < 90 && w.compacts:
		_, _ = w.etcd.Compact(w.t.Context(), 1+w.r.Int64N(w.revision())) // may be compacted already
	case what < 92: // the hub closes if it has no readers
		for _, p := range w.pairs {
			w.end(p)
		}
		w.pairs = nil
		time.Sleep(time.Duration(w.r.IntN(60)) * time.Second)
	default:
		time.Sleep(time.Duration(w.r.IntN(5000)) * time.Millisecond)
	}
}

// write commits a transaction with several changes, some of which have no event.
func (w *walk) write() {
	ops := map[string]clientv3.Op{}
	for range 1 + w.r.IntN(6) {
		key, value := "/other", "x"
		switch w.r.IntN(6) {
		case 0:
			key = w.keys.Node(fmt.Sprint("n", w.r.IntN(3)))
			value = fmt.Sprintf(`{"state":%q}`, []string{task.NodeReady, task.NodeCordoned}[w.r.IntN(2)])
		case 1:
			key, value = w.keys.Owner(w.r.IntN(4)), fmt.Sprintf(`{"node":"n%d"}`, w.r.IntN(3))
		case 2:
			key, value = w.keys.Leader()+fmt.Sprint(w.r.IntN(2)), "n1"
		case 3, 4:
			name := record.Ref{Namespace: []string{"many", "few"}[w.r.IntN(2)], Name: fmt.Sprint("t", w.r.IntN(5))}
			key, value = w.keys.Spec(name), fmt.Sprintf(`{"generation":%d}`, w.r.IntN(1000))
		}

		if ops[key] = clientv3.OpPut(key, value); w.r.IntN(4) == 0 {
			ops[key] = clientv3.OpDelete(key)
		}
	}

	var list []clientv3.Op
	for _, key := range slices.Sorted(maps.Keys(ops)) {
		list = append(list, ops[key])
	}

	_, err := w.etcd.Txn(w.t.Context()).Then(list...).Commit()
	ok(w.t, err)
}

// anyPlace returns a place to begin at, or nil for now. The place may be after everything that has happened.
func (w *walk) anyPlace() *task.Place {
	newest := w.revision()
	near := max(1, newest-int64(w.r.IntN(12)))

	switch w.r.IntN(8) {
	case 0, 1:
		return nil
	case 2:
		return &task.Place{}
	case 3:
		return &task.Place{Revision: 2 + w.r.Int64N(newest), Index: 1 + w.r.IntN(3)}
	case 4:
		p := task.After(1 + w.r.Int64N(newest+3))
		return &p
	case 5:
		return &task.Place{Revision: near + 1, Index: 1 + w.r.IntN(3)}
	default:
		p := task.After(near)
		return &p
	}
}

// join adds a reader and its twin.
func (w *walk) join(after *task.Place) {
	q := eventlog.Query{After: after, OwnWatch: w.ownWatch}

	switch w.r.IntN(4) {
	case 0:
		q.Wants = task.EventFilter{Namespace: "few"}.Wants
	case 1:
		q.Wants = task.EventFilter{Kinds: []string{task.EventShard, task.EventNode}}.Wants
	}

	// Some readers are slow at times.
	before := func() {}
	if w.r.IntN(3) == 0 {
		pauses := rand.New(rand.NewPCG(w.r.Uint64(), 2))
		before = func() {
			if pauses.IntN(4) == 0 {
				time.Sleep(time.Duration(pauses.IntN(8000)) * time.Millisecond)
			}
		}
	}

	if q.Brief = after != nil && w.r.IntN(4) == 0; w.r.IntN(10) == 0 {
		w.addWatching(100) // no watch is free
		defer w.addWatching(-100)
	}

	reader, err := w.read(q, before)
	if err != nil {
		w.seen.refused++
		return
	}

	twin := startReading(w.t, nil, func(ctx context.Context, apply func(eventlog.Batch) error) error {
		return w.cluster.log.FollowEvents(ctx, q, apply)
	})

	time.Sleep(3 * time.Second) // so that both begin before the next step
	w.pairs = append(w.pairs, &pair{q, reader, twin})
}

// ownWatch limits the watches of readers.
func (w *walk) ownWatch() (func(), error) {
	w.watchMu.Lock()
	defer w.watchMu.Unlock()
	if w.watching >= 3 {
		return nil, errFull
	}

	w.watching++

	return func() { w.addWatching(-1) }, nil
}

func (w *walk) addWatching(n int) {
	w.watchMu.Lock()
	defer w.watchMu.Unlock()
	w.watching += n
}

// resume ends a pair, and adds one that continues at a place that the reader had.
func (w *walk) resume() {
	i := w.r.IntN(len(w.pairs))
	p := w.pairs[i]
	w.pairs = slices.Delete(w.pairs, i, i+1)
	w.end(p)

	place := p.hub.place()
	if events := p.hub.all(); len(events) > 0 && w.r.IntN(2) == 0 {
		place, _ = task.ParsePlace(events[w.r.IntN(len(events))].ID)
	}

	if place != (task.Place{}) {
		w.seen.resumed++
		w.join(&place)
	}
}

// end ends a pair and compares what its readers got.
func (w *walk) end(p *pair) {
	w.t.Helper()
	p.hub.stopReading()
	p.twin.stopReading()

	got, upTo := p.hub.all(), p.hub.place()
	w.seen.events += len(got)
	w.checkComplete(p, got, upTo)

	if w.compacts {
		return
	}

	// One of both may be further than the other.
	want := p.twin.all()
	n := min(len(got), len(want))
	if a, b := asJSON(w.t, got[:n]), asJSON(w.t, want[:n]); n > 0 && a != b {
		w.t.Fatalf("after %v: the hub gives\n%s\nan own watch\n%s", p.query.After, a, b)
	}

	if p.query.After == nil && p.hub.told[0] != p.twin.told[0] {
		w.t.Fatalf("after %v: the hub begins at %s, an own watch at %s", p.query.After, p.hub.told[0], p.twin.told[0])
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	ok(t, err)

	return string(text)
}

// checkComplete checks that a reader got exactly what has happened between its start and the place upTo, or a gap for
// what is missing.
func (w *walk) checkComplete(p *pair, got []task.Event, upTo task.Place) {
	w.t.Helper()
	if len(p.hub.told) == 0 {
		return
	}

	at := p.hub.told[0]
	if p.query.After != nil {
		at = *p.query.After
	}

	// next returns the next event after at.
	all := w.log.all()
	next := func() (task.Event, task.Place) {
		for ; len(all) > 0; all = all[1:] {
			place, _ := task.ParsePlace(all[0].ID)
			if at.Before(place) && (p.query.Wants == nil || p.query.Wants(&all[0])) {
				return all[0], place
			}
		}
		return task.Event{}, task.After(1 << 60)
	}

	for _, e := range got {
		expected, place := next()

		switch {
		case e.Kind == task.EventGap && e.Action == task.ActionRestored:
			at, all = task.After(e.To), w.log.all()
		case e.Kind == task.EventGap:
			if w.seen.gaps++; !w.compacts || place.Revision < e.From || e.To < at.Revision {
				w.t.Fatalf("after %s: the gap is %+v, but the next event is %s", at, e, expected.ID)
			}
			at = task.After(e.To)
		case asJSON(w.t, e) != asJSON(w.t, expected):
			w.t.Fatalf("after %v, at %s: got %+v, want %+v", p.query.After, at, e, expected)
		default:
			at, all = place, all[1:]
		}
	}

	if expected, place := next(); !upTo.Before(place) {
		w.t.Fatalf("after %v: %s is missing, and everything up to %s was delivered", p.query.After, expected.ID, upTo)
	}
}
