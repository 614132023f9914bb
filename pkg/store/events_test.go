package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// newEventWorld returns a world with a separate in-memory store, which a test may compact.
func newEventWorld(t *testing.T) *world {
	t.Helper()
	keys, err := record.NewKeys("/events")
	ok(t, err)
	w := &world{T: t, keys: keys, etcd: kvtest.Memory(t)}
	w.Store = w.other()
	_, _, err = w.Bootstrap(t.Context(), 8, noon, store.OpenAccess())
	ok(t, err)
	w.fences.Node, w.fences.Owner = w.register(node), w.own(ref.Shard, node)

	return w
}

var errEnough = errors.New("enough")

// eventsFrom returns the events after a place, up to the present.
func (w *world) eventsFrom(after task.Place) []task.Event {
	w.Helper()
	events, err := w.readEvents(after)
	ok(w.T, err)

	return events
}

func (w *world) readEvents(after task.Place) (events []task.Event, err error) {
	there, err := w.Present(w.Context())
	if err != nil || !after.Before(task.After(there.Revision)) && after.Revision == there.Revision {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
	defer cancel()

	err = w.FollowEvents(ctx, eventlog.Query{After: &after}, func(b eventlog.Batch) error {
		for _, e := range b.Events {
			events = append(events, e.Event)
		}

		if !b.Told.Before(task.After(there.Revision)) { // all events of that revision
			return errEnough
		}
		return nil
	})

	if !errors.Is(err, errEnough) {
		return nil, fmt.Errorf("events after %s: %w, after %d events", after, err, len(events))
	}

	return events, nil
}

// picture is the state of the cluster, derived either from its keys or from its events.
type picture struct {
	Tasks  map[string]int64
	Runs   map[string]task.State
	Owners map[int]string
	Nodes  map[string]string
	Leader string
}

func newPicture() picture {
	return picture{map[string]int64{}, map[string]task.State{}, map[int]string{}, map[string]string{}, ""}
}

// replay derives the state from events.
func replay(events []task.Event) picture {
	p := newPicture()
	for _, e := range events {
		name := e.Namespace + "/" + e.Task

		switch {
		case e.Kind == task.EventTask && e.Action == task.ActionDeleted:
			delete(p.Tasks, name)
		case e.Kind == task.EventTask:
			p.Tasks[name] = e.Generation
		case e.Kind == task.EventRun && e.Action == task.ActionDeleted:
			delete(p.Runs, name+"/"+e.Run)
		case e.Kind == task.EventRun && e.Action != task.ActionLate:
			p.Runs[name+"/"+e.Run] = task.State(e.State)
		case e.Kind == task.EventShard:
			p.Owners[*e.Shard] = e.Node
		case e.Kind == task.EventNode && e.Action == task.ActionLeft:
			delete(p.Nodes, e.Node)
		case e.Kind == task.EventNode:
			p.Nodes[e.Node] = e.State
		case e.Action == task.ActionLeader:
			p.Leader = e.Node
		}
	}

	return p
}

// picture derives the state from the present keys.
func (w *world) picture() picture {
	w.Helper()
	p := newPicture()
	all, _, err := kv.List(w.Context(), w.etcd, w.keys.Root(), clientv3.GetPrefixRangeEnd(w.keys.Root()), 0)
	ok(w.T, err)

	oldest := int64(0)
	for _, e := range all {
		key := string(e.Key)
		var r struct {
			State      task.State
			Node       string
			Generation int64
		}
		_ = json.Unmarshal(e.Value, &r)

		if ns, name, ok := w.keys.ParseSpec(key); ok {
			p.Tasks[ns+"/"+name] = r.Generation
		}

		if k, ok := w.keys.ParseShard(key); ok && !k.Late && (k.Kind == record.KindQueued || k.Kind == record.KindEnded) {
			p.Runs[k.Ref.String()+"/"+k.Run] = r.State
		}

		if k, ok := w.keys.ParseRun(key); ok {
			p.Runs[k.Ref.String()+"/"+k.Run] = r.State
		}

		if shard, ok := w.keys.ParseOwner(key); ok {
			p.Owners[shard] = r.Node
		}

		if name, ok := strings.CutPrefix(key, w.keys.Nodes()); ok {
			p.Nodes[name] = string(r.State)
		}

		if strings.HasPrefix(key, w.keys.Leader()) && (oldest == 0 || e.CreateRevision < oldest) {
			oldest, p.Leader = e.CreateRevision, string(e.Value)
		}
	}

	return p
}

// sameAs compares the state that follows from events with that of the keys. Ended runs whose record is gone are known
// from events only.
func (p picture) sameAs(t *testing.T, keys picture) {
	t.Helper()
	maps.DeleteFunc(p.Runs, func(run string, s task.State) bool {
		_, there := keys.Runs[run]
		return !there && s.Final()
	})

	a, _ := json.MarshalIndent(p, "", " ")
	b, _ := json.MarshalIndent(keys, "", " ")
	if string(a) != string(b) {
		t.Errorf("events lead to\n%s\nthe keys hold\n%s", a, b)
	}
}

// walk makes a random step that a cluster could make, if it is possible at the moment.
func (w *world) walk(r *rand.Rand, n int) {
	w.Helper()
	ctx := w.Context()
	at := record.Ref{Namespace: []string{"default", "ops"}[r.IntN(2)], Name: string(rune('a' + r.IntN(2))), Shard: ref.Shard}

	st, err := w.Task(ctx, at)
	if errors.Is(err, task.ErrNotFound) {
		w.create(at)
		return
	}

	ok(w.T, err)
	active, err := w.ActiveOf(ctx, at)
	ok(w.T, err)
	queued := w.below(w.keys.QueueOf(at))
	waits := func() (task.Waiting, int64) {
		mod, _, value := w.at(w.keys.Queued(at, queued[0]))
		q, err := record.DecodeWaiting(record.ShardKey{Ref: at, Run: queued[0]}, []byte(value))
		ok(w.T, err)

		return q, mod
	}

	switch what := r.IntN(16); {
	case what == 0 && n%5 == 0:
		_, err = w.DeleteTask(ctx, st)
	case what == 1:
		t := st.Task
		t.Generation++
		t.Paused, t.UpdatedBy = !t.Paused, task.NewActor("ann")
		_, err = w.UpdateTask(ctx, st, t, st.Entry)
	case what == 2:
		_, err = w.Enqueue(ctx, st, waiting(at, n))
	case what == 3 && len(queued) > 0:
		_, err = w.CancelQueued(ctx, at, queued[0], task.NewActor("ann"), noon)
	case what == 4 && len(queued) > 0:
		q, mod := waits()
		c := w.begin()
		q.Reason = task.ReasonOverlap
		c.Requeue(at, q, mod)
		w.commit(c)
	case what <= 6 && len(queued) > 0: // several runs at one revision
		q, mod := waits()
		c := w.begin()
		c.Dequeue(at, q.ID, mod)
		a := assigned(at, n, node)
		a.Run = q.Run
		a.State, a.Node = task.Dispatched, node
		dispatch(c, a, w.session(node))
		skip := ended(at, n, task.Skipped)
		skip.ID += "-s"
		c.Record(at, skip)
		w.commit(c)
	case what <= 9 && len(active) < 4:
		w.dispatch(at, n, node)
	case what == 10 && len(active) > 0 && !active[0].CancelRequested:
		err = w.HandBack(ctx, active[0])
	case what == 11 && len(active) > 0:
		_, err = w.CancelActive(ctx, active[0], task.NewActor("ann"))
	case what == 12 && len(active) > 0:
		h := active[0]
		if h.State = task.Running; h.PauseRequested {
			h.State, h.PausedAt = task.Paused, task.At(noon)
		}
		_, err = w.Rewrite(ctx, w.fences.Node, h)
	case what == 13 && n%2 == 0 && len(active) > 0:
		if h := active[0]; h.PauseRequested {
			_, err = w.ResumeActive(ctx, h, task.NewActor("bob"))
		} else {
			_, err = w.PauseActive(ctx, h, task.NewActor("ann"))
		}
	case what == 13 && len(active) > 0 && !active[0].CancelRequested:
		end := endOf(active[0], task.Failed)
		err = w.Finish(ctx, active[0], end, nextOf(active[0], end))
	case what <= 14 && len(active) > 0:
		err = w.Finish(ctx, active[0], endOf(active[0], task.Succeeded), nil)
	default:
		w.own(1+r.IntN(2), []string{"n1", "n2"}[r.IntN(2)])

		if name := fmt.Sprint("x", r.IntN(2)); w.exists(w.keys.Node(name)) {
			w.del(w.keys.Node(name))
			w.del(w.keys.Leader() + name)
		} else {
			w.register(name)
			w.put(w.keys.Leader()+name, name)
		}
	}

	ok(w.T, err)
}

// Whatever happens, the events lead to the present state. From every place on they are the same, none is missing, and
// none is delivered twice.
func TestEvents_LeadToWhatIsThereFromEveryPlaceOn(t *testing.T) {
	w := newEventWorld(t)
	r := rand.New(rand.NewPCG(1795394951927951724, 1)) // the last changes of this walk have no events

	for n := range 60 {
		w.walk(r, n)
	}

	all := w.eventsFrom(task.Place{})
	if all[0].Action != task.ActionMade {
		t.Errorf("the first event is %+v", all[0])
	}

	replay(all).sameAs(t, w.picture())
	place := func(i int) task.Place {
		p, err := task.ParsePlace(all[i].ID)
		ok(t, err)
		return p
	}

	for i := 1; i < len(all); i++ {
		if !place(i - 1).Before(place(i)) {
			t.Fatalf("%s comes after %s", all[i].ID, all[i-1].ID)
		}
	}

	var places errgroup.Group
	places.SetLimit(32) // each waits for etcd, which processes new watches only now and then

	for i := range all {
		for after, want := range map[task.Place][]task.Event{place(i): all[i+1:], task.After(all[i].Revision): later(all, all[i].Revision)} {
			places.Go(func() error {
				got, err := w.readEvents(after)
				if err == nil {
					err = differ(got, want)
				}

				if err != nil {
					return fmt.Errorf("after %s: %w", after, err)
				}

				return nil
			})
		}
	}

	ok(t, places.Wait())

	// The first half is compacted. A gap is reported, and the second half is delivered.
	gone := all[len(all)/2].Revision
	_, err := w.etcd.Compact(t.Context(), gone)
	ok(t, err)
	after := task.After(all[3].Revision)
	got := w.eventsFrom(after)
	if g := got[0]; g.Kind != task.EventGap || g.Action != task.ActionCompacted || g.From != after.Revision+1 || g.To != gone || g.ID != fmt.Sprint(gone) {
		t.Errorf("the gap is %+v", g)
	}

	sameEvents(t, "after the gap", got[1:], later(all, gone))
	sameEvents(t, "after what is compacted just now", w.eventsFrom(task.After(gone)), later(all, gone))

	if got := w.eventsFrom(task.Place{}); got[0].Kind != task.EventGap || got[0].From != 0 || got[0].To != gone {
		t.Errorf("from the oldest: %+v", got[0])
	}

	if got := w.eventsFrom(task.Place{Revision: gone, Index: 1}); got[0].Kind != task.EventGap || got[0].From != gone {
		t.Errorf("in the middle of what is compacted: %+v", got[0])
	}

	now, err := w.etcd.Get(t.Context(), "/", clientv3.WithCountOnly())
	ok(t, err)

	last := now.Header.Revision
	if got := w.eventsFrom(task.Place{Revision: last + 1000, Index: 1}); len(got) != 1 || got[0].Action != task.ActionRestored || got[0].To != last {
		t.Errorf("after what etcd has not: %+v", got)
	}
}

func later(all []task.Event, revision int64) []task.Event {
	return all[slices.IndexFunc(append(all, task.Event{Revision: 1 << 62}), func(e task.Event) bool { return e.Revision > revision }):]
}

func sameEvents(t *testing.T, what string, got, want []task.Event) {
	t.Helper()
	if err := differ(got, want); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// differ returns how the delivered events differ from the expected ones.
func differ(got, want []task.Event) error {
	a, _ := json.Marshal(got)
	b, _ := json.Marshal(want)
	if len(got) != len(want) || len(got) > 0 && string(a) != string(b) {
		return fmt.Errorf("%d events, want %d\n%.2000s\n%.2000s", len(got), len(want), a, b)
	}

	return nil
}
