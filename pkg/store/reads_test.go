package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestFollowShard_TellsTheShardAsItWasOpenedThenWhatHappens(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	_, err := w.Enqueue(t.Context(), st, waiting(ref, 1))
	ok(t, err)
	w.put(w.keys.Ended(ref, "old"), "{}")                                            // the history is not loaded
	w.put(w.keys.Entry(record.Ref{Namespace: "default", Name: "a", Shard: 4}), "{}") // in another shard
	w.put(w.keys.Entries(3)+"default/bad", "{")                                      // an unreadable record
	w.put(w.keys.Entries(3)+"stray", "{}")                                           // not the key of a record
	_, rev, err := w.Open(t.Context(), ref.Shard, w.fences)
	ok(t, err)
	w.commit(w.begin()) // after the revision at which the shard is loaded
	batches := follow(t, func(ctx context.Context, apply func(store.ShardBatch) error) error {
		return w.FollowShard(ctx, ref.Shard, rev, apply)
	})

	counts := func(b store.ShardBatch) bool { return b.Reset || len(b.Events) > 0 }
	b := next(t, batches, counts)
	told := func(b store.ShardBatch) (s []string) {
		for _, e := range b.Events {
			x := string(e.Kind) + " " + e.Ref.String() + " " + e.Run
			if e.Deleted {
				x += " deleted"
			}

			if e.Late {
				x += " late"
			}

			if e.Task != e.Ref.String() && e.Kind != record.KindWatermark {
				x += " of " + e.Task
			}

			s = append(s, x)
		}

		return s
	}

	id := tickRun(ref, 1).ID
	if got := told(b); !b.Reset || b.Revision != rev || !slices.Equal(got, []string{"queue default/a " + id, "tasks default/a ", "tasks default/bad ", "watermark / "}) {
		t.Fatalf("the load is %q at %d, opened at %d", got, b.Revision, rev)
	}

	entry, err := record.DecodeEntry(b.Events[1].Value)
	ok(t, err)

	if e := b.Events[1]; entry.UID != st.Entry.UID || e.Mod != st.EntryMod || e.Create != st.EntryMod || e.Key != w.keys.Entry(ref) {
		t.Errorf("the entry is delivered as %+v", e)
	}

	mark, err := record.DecodeWatermark(b.Events[3].Value)
	ok(t, err)

	if b.Events[3].Mod != rev || mark.Time.UnixMilli() != 0 {
		t.Errorf("the watermark is delivered as %+v", mark)
	}

	mod, _, _ := w.at(w.keys.Queued(ref, id))
	c := w.begin()
	c.Dequeue(ref, id, mod)
	dispatch(c, assigned(ref, 1, node), w.fences.Node.CreateRevision)
	rev = w.commit(c)
	b = next(t, batches, counts)
	got := told(b)
	slices.Sort(got)

	if b.Reset || b.Revision != rev || !slices.Equal(got, []string{"queue default/a " + id + " deleted"}) {
		t.Errorf("a dispatch is delivered as %q at %d, want %d", got, b.Revision, rev)
	}

	for _, e := range b.Events {
		if e.Mod != rev || e.Deleted != (e.Create == 0) {
			t.Errorf("%s is delivered at %d, created at %d", e.Key, e.Mod, e.Create)
		}
	}

	h := w.held(record.RunKey{Node: node, Ref: ref, Run: id})
	ok(t, w.Finish(t.Context(), h, endOf(h, task.Succeeded), nil))

	b = next(t, batches, counts)
	if got := told(b); !slices.Equal(got, []string{"history default/a " + id}) {
		t.Errorf("an end is delivered as %q", got)
	}

	ended, err := record.DecodeEnded(b.Events[0].ShardKey, b.Events[0].Value)
	if ok(t, err); ended.State != task.Succeeded || ended.Token != h.Create {
		t.Errorf("an end is delivered as %+v", ended)
	}

	is(t, w.Finish(t.Context(), h, endOf(h, task.Failed), nil), store.ErrLate)

	if got := told(next(t, batches, counts)); !slices.Equal(got, []string{"history default/a " + id + " late"}) {
		t.Errorf("a late result is delivered as %q", got)
	}

	_, err = w.DeleteTask(t.Context(), w.stored(ref))
	ok(t, err)
	got = told(next(t, batches, counts))
	slices.Sort(got)

	if want := []string{"history default/a " + id + " deleted", "history default/a " + id + " deleted late", "history default/a old deleted", "tasks default/a  deleted"}; !slices.Equal(got, want) {
		t.Errorf("a delete is delivered as %q", got)
	}
}

func TestFollowShard_EndsWithApplysError(t *testing.T) {
	w := newWorld(t)
	_, rev, err := w.Open(t.Context(), ref.Shard, w.fences)
	ok(t, err)

	stop := errors.New("enough")
	if err := w.FollowShard(t.Context(), ref.Shard, rev, func(store.ShardBatch) error { return stop }); err != stop {
		t.Errorf("it ended with %v", err)
	}
}

func TestScanActive_ListsEveryAttempt(t *testing.T) {
	w := newWorld(t)
	w.register("n2")
	a, b := w.dispatch(ref, 1, node), w.dispatch(ref, 2, "n2")
	w.put(w.keys.Runs()+"stray", "{}")
	rev := w.put(w.keys.Run("gone", ref, "zz"), "{")
	keys, at, err := w.ScanActive(t.Context())
	ok(t, err)
	want := []store.ActiveKey{
		{RunKey: record.RunKey{Node: "gone", Ref: ref, Run: "zz"}, Mod: rev, Create: rev},
		{RunKey: record.RunKey{Node: node, Ref: ref, Run: a.ID}, Mod: a.Mod, Create: a.Create},
		{RunKey: record.RunKey{Node: "n2", Ref: ref, Run: b.ID}, Mod: b.Mod, Create: b.Create},
	}
	if !slices.Equal(keys, want) || at != rev {
		t.Errorf("%+v at %d, want %+v at %d", keys, at, want, rev)
	}

	if all, err := w.Active(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("active %+v, %v", all, err)
	}

	if inbox, err := w.Inbox(t.Context(), "n2"); err != nil || len(inbox) != 1 || inbox[0].ID != b.ID {
		t.Errorf("inbox %+v, %v", inbox, err)
	}
}

func TestAttempt_TellsWhetherItsNodeIsPresent(t *testing.T) {
	w := newWorld(t)
	w.register("n2")
	w.register("n2-1")
	h := w.dispatch(ref, 1, "n2")
	k := record.RunKey{Node: "n2", Ref: ref, Run: h.ID}

	got, present, err := w.Attempt(t.Context(), k)
	if err != nil || !present || !sameHeld(got, h) {
		t.Errorf("%+v, %v, %v", got, present, err)
	}

	w.del(w.keys.Node("n2"))
	got, present, err = w.Attempt(t.Context(), k)
	if err != nil || present || !sameHeld(got, h) {
		t.Errorf("without its node: %+v, %v, %v", got, present, err)
	}

	w.put(w.keys.Run("n2", ref, h.ID), "{")
	_, _, err = w.Attempt(t.Context(), k)
	is(t, err, task.ErrInvalid)
	_, _, err = w.Attempt(t.Context(), record.RunKey{Node: "n2", Ref: ref, Run: "other"})
	is(t, err, task.ErrNotFound)
}

func ids(runs []task.Run) (s []string) {
	for _, r := range runs {
		s = append(s, r.Namespace+"/"+r.Task+" "+string(r.State)+" "+strings.TrimPrefix(r.ID, "20261120T"))
	}
	return s
}

// putEnded writes a history record.
func (w *world) putEnded(r record.Ref, n int, s task.State) string {
	id := tickRun(r, n).ID
	w.put(w.keys.Ended(r, id), fmt.Sprintf(`{"state":%q,"scheduled_time":%q,"trigger":"schedule"}`, s, tickRun(r, n).ScheduledTime.Format("2006-01-02T15:04:05.000Z")))
	return id
}

func TestRuns_AreTheWaitingTheActiveAndTheEndedNewestFirst(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	w.register("n2")
	w.register("n0")
	w.putEnded(ref, 1, task.Succeeded)
	late := w.putEnded(ref, 2, task.Lost)
	w.put(w.keys.Late(ref, late, 7), `{"state":"succeeded"}`)
	w.put(w.keys.Ended(ref, "20261120T120230.000Z-bad"), "{")
	w.dispatch(ref, 3, "n2")
	w.dispatch(ref, 4, "n0")
	_, err := w.Enqueue(t.Context(), st, waiting(ref, 5))
	ok(t, err)

	for _, r := range []record.Ref{{Namespace: "default", Name: "a-1", Shard: 3}, {Namespace: "default-1", Name: "a", Shard: 3}, {Namespace: "default", Name: "a", Shard: 4}} {
		w.putEnded(r, 6, task.Failed)
		w.put(w.keys.Queued(r, "x"), "{}")
		w.put(w.keys.Run("n2", r, "x"), "{}")
	}

	runs, err := w.Runs(t.Context(), ref)
	ok(t, err)
	want := []string{"default/a queued 120500.000Z-k3f9", "default/a dispatched 120400.000Z-k3f9", "default/a dispatched 120300.000Z-k3f9",
		"default/a lost 120200.000Z-k3f9", "default/a succeeded 120100.000Z-k3f9"}
	if got := ids(runs); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}

	if runs[1].Node != "n0" || runs[2].Node != "n2" || runs[1].Token == 0 || runs[0].Shard != 3 {
		t.Errorf("%+v", runs)
	}

	active, err := w.ActiveOf(t.Context(), ref)
	if err != nil || len(active) != 2 || active[0].Node != "n0" || active[1].Node != "n2" {
		t.Errorf("active %+v, %v", active, err)
	}

	held, err := w.Attempts(t.Context(), []record.RunKey{{Node: "n2", Ref: ref, Run: tickRun(ref, 3).ID}, {Node: "n2", Ref: ref, Run: "none"}})
	if err != nil || len(held) != 2 || held[0] == nil || held[0].ID != tickRun(ref, 3).ID || held[1] != nil {
		t.Errorf("attempts %+v, %v", held, err)
	}

	entries, err := w.Entries(t.Context(), []record.Ref{ref, {Namespace: "default", Name: "none", Shard: 3}})
	if err != nil || len(entries) != 2 || entries[0] == nil || entries[0].UID != st.Entry.UID || entries[1] != nil {
		t.Errorf("entries %+v, %v", entries, err)
	}
}

func TestShardRuns_AreOfTheShardsAndTheNamespaceAsked(t *testing.T) {
	w := newWorld(t)
	b, x := record.Ref{Namespace: "default", Name: "b", Shard: 4}, record.Ref{Namespace: "default-1", Name: "a", Shard: 3}
	w.putEnded(ref, 1, task.Succeeded)
	w.putEnded(b, 2, task.Failed)
	w.putEnded(x, 3, task.Failed)
	w.putEnded(record.Ref{Namespace: "default", Name: "c", Shard: 5}, 4, task.Failed)
	w.put(w.keys.Late(ref, tickRun(ref, 1).ID, 7), `{"state":"succeeded"}`)
	_, err := w.Enqueue(t.Context(), w.create(ref), waiting(ref, 5))
	ok(t, err)

	for namespace, want := range map[string][]string{
		"default":   {"default/a queued 120500.000Z-k3f9", "default/b failed 120200.000Z-k3f9", "default/a succeeded 120100.000Z-k3f9"},
		"default-1": {"default-1/a failed 120300.000Z-k3f9"},
		"":          {"default/a queued 120500.000Z-k3f9", "default-1/a failed 120300.000Z-k3f9", "default/b failed 120200.000Z-k3f9", "default/a succeeded 120100.000Z-k3f9"},
		"defaul":    nil,
	} {
		runs, err := w.ShardRuns(t.Context(), []int{3, 4}, namespace)
		ok(t, err)
		if got := ids(runs); !slices.Equal(got, want) {
			t.Errorf("of %q: %q", namespace, got)
		}
	}

	many := make([]int, 200)
	for i := range many {
		many[i] = i
	}

	if runs, err := w.ShardRuns(t.Context(), many, ""); err != nil || len(runs) != 5 {
		t.Errorf("of 200 shards: %q, %v", ids(runs), err)
	}
}

func TestOutcomes_TheNewestThatCountsComesFirst(t *testing.T) {
	w := newWorld(t)
	name := func(n string) record.Ref { return record.Ref{Namespace: "default", Name: n, Shard: 3} }
	w.putEnded(ref, 1, task.Succeeded)
	w.putEnded(ref, 2, task.Failed)
	w.putEnded(name("a-1"), 9, task.Succeeded)
	// The newest record of this task is a late result.
	lost := w.putEnded(name("late"), 3, task.Lost)
	w.put(w.keys.Late(name("late"), lost, 7), `{"state":"succeeded"}`)
	// The lost attempt was retried and its run has not ended, so the previous run is the newest ended one.
	w.putEnded(name("retried"), 4, task.Failed)

	for token := range int64(5) {
		w.put(w.keys.Late(name("retried"), tickRun(ref, 5).ID, token), `{"state":"succeeded"}`)
	}

	w.put(w.keys.Late(name("only-late"), tickRun(ref, 5).ID, 1), `{"state":"succeeded"}`)
	refs := []record.Ref{ref, name("none"), name("late"), name("retried"), name("only-late")}
	for i := range 200 {
		refs = append(refs, name(fmt.Sprint("many", i)))
	}

	refs = append(refs, name("a-1"))
	outcomes, err := w.Outcomes(t.Context(), outcomeReads(refs...), 1)
	ok(t, err)

	last := make([]*task.Run, len(outcomes))
	for i, o := range outcomes {
		if len(o.Runs) > 0 {
			last[i] = &o.Runs[0]
		}
	}

	if len(last) != len(refs) {
		t.Fatalf("%d of %d", len(last), len(refs))
	}

	for i, want := range map[int]task.State{0: task.Failed, 1: "", 2: task.Lost, 3: task.Failed, 4: "", 100: "", len(refs) - 1: task.Succeeded} {
		switch {
		case want == "" && last[i] != nil:
			t.Errorf("%s: %+v", refs[i], *last[i])
		case want != "" && (last[i] == nil || last[i].State != want || last[i].Task != refs[i].Name):
			t.Errorf("%s: %+v, want %s", refs[i], last[i], want)
		}
	}
}

func TestFindRuns_ByTheBeginningOfAnID(t *testing.T) {
	w := newWorld(t)
	b := record.Ref{Namespace: "default", Name: "b", Shard: 7}
	w.register("n2")
	one := w.putEnded(ref, 1, task.Lost)
	w.put(w.keys.Late(ref, one, 7), "{}")
	w.putEnded(b, 1, task.Failed)
	w.putEnded(record.Ref{Namespace: "default-1", Name: "a", Shard: 3}, 1, task.Failed)
	w.dispatch(ref, 2, "n2")
	w.put(w.keys.Queued(ref, tickRun(ref, 2).ID), "{}") // a run that moves out of the queue and is seen twice
	w.put(w.keys.Queued(b, tickRun(b, 13).ID), "{}")

	for prefix, want := range map[string][]string{
		"20261120T120100": {"default/a " + one, "default/b " + one},
		"20261120T1202":   {"default/a " + tickRun(ref, 2).ID},
		"20261120T1213":   {"default/b " + tickRun(b, 13).ID},
		"20261121":        nil,
	} {
		refs, found, err := w.FindRuns(t.Context(), 8, "default", prefix, 10)
		ok(t, err)

		var got []string
		for i := range refs {
			got = append(got, refs[i].String()+" "+found[i])
		}

		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", prefix, got, want)
		}
	}

	if _, found, err := w.FindRuns(t.Context(), 8, "default", "2026", 3); err != nil || len(found) != 3 {
		t.Errorf("at most 3: %v, %v", found, err)
	}
}

// movingKV is a KV that dispatches a run after the first read.
type movingKV struct {
	clientv3.KV
	move func()
}

func (m *movingKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	defer func() {
		if move := m.move; move != nil {
			m.move = nil
			move()
		}
	}()

	return m.KV.Get(ctx, key, opts...)
}

func TestFindRuns_FindsOneThatMovesMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.register("n2")
	c, err := kv.Dial(t.Context(), kv.Config{Endpoints: shared.Endpoints()})
	ok(t, err)
	t.Cleanup(func() { _ = c.Close() })
	queued := w.keys.Queued(ref, tickRun(ref, 2).ID)
	w.put(queued, "{}")
	c.KV = &movingKV{c.KV, func() {
		w.dispatch(ref, 2, "n2")
		_, err := w.etcd.Delete(t.Context(), queued)
		ok(t, err)
	}}

	if _, found, err := store.New(c, kv.Direct(c), w.keys).FindRuns(t.Context(), 8, "default", "2026", 3); err != nil || len(found) != 1 {
		t.Errorf("found %v, %v", found, err)
	}
}

// countingKV is a KV that counts requests.
type countingKV struct {
	clientv3.KV
	requests int
}

func (c *countingKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	c.requests++
	return c.KV.Get(ctx, key, opts...)
}

func (c *countingKV) Txn(ctx context.Context) clientv3.Txn {
	c.requests++
	return c.KV.Txn(ctx)
}

func TestFindRuns_ReadsManyShardsInARequest(t *testing.T) {
	w := newWorld(t)
	c, err := kv.Dial(t.Context(), kv.Config{Endpoints: shared.Endpoints()})
	ok(t, err)
	t.Cleanup(func() { _ = c.Close() })
	counting := &countingKV{KV: c.KV}
	c.KV = counting
	s := store.New(c, kv.Direct(c), w.keys)

	far := record.Ref{Namespace: "default", Name: "b", Shard: 255}
	id := w.putEnded(far, 1, task.Failed)

	find := func(prefix string) []string {
		t.Helper()
		counting.requests = 0
		_, found, err := s.FindRuns(t.Context(), 256, "default", prefix, 10)
		ok(t, err)

		return found
	}

	// The inboxes, and 512 ranges of 100 at a time.
	if found := find("2026"); !slices.Equal(found, []string{id}) || counting.requests != 1+6 {
		t.Errorf("found %q with %d requests", found, counting.requests)
	}

	// A long history, whose last run is the one to find. It is searched by task: the names of the tasks, the gap in which
	// this one is found, and its runs.
	var ops []clientv3.Op
	for i := range 2500 {
		ops = append(ops, clientv3.OpPut(w.keys.Ended(ref, fmt.Sprintf("20250101T000000.000Z-%04d", i)), "{}"))
	}

	last := "20250102T000000.000Z-last"
	ops = append(ops, clientv3.OpPut(w.keys.Ended(ref, last), "{}"))
	for chunk := range slices.Chunk(ops, 100) {
		_, err := w.etcd.Txn(t.Context()).Then(chunk...).Commit()
		ok(t, err)
	}

	if found := find("20250102"); !slices.Equal(found, []string{last}) || counting.requests > 1+6+3 {
		t.Errorf("found %q with %d requests", found, counting.requests)
	}
}

func TestCancelQueued_EndsARunThatWaits(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	_, err := w.Enqueue(t.Context(), st, waiting(ref, 1))
	ok(t, err)
	id := tickRun(ref, 1).ID
	_, err = w.CancelQueued(t.Context(), ref, "none", task.NewActor("me"), noon)
	is(t, err, task.ErrNotFound)
	w.writes.before = func(n int) { // the run is taken from the queue at this moment
		w.writes.before = nil
		w.put(w.keys.Queued(ref, id), `{"reason":"overlap"}`)
	}

	_, err = w.CancelQueued(t.Context(), ref, id, task.NewActor("me"), noon)
	is(t, err, task.ErrConflict)

	if w.history(ref, id) != nil {
		t.Error("it ended all the same")
	}

	run, err := w.CancelQueued(t.Context(), ref, id, task.NewActor("me"), noon)
	ok(t, err)

	if got := w.history(ref, id); run.State != task.Cancelled || got == nil || got.State != task.Cancelled || !got.CancelledBy.Is("me") || !got.EndedAt.Equal(noon) || w.queued(ref, id) != nil {
		t.Errorf("%+v", got)
	}
}

func TestTrimHistory_KeepsExactlyWhatIsToBeKept(t *testing.T) {
	w := newWorld(t)
	other := record.Ref{Namespace: "default", Name: "a-1", Shard: 3}

	const records = 230
	for n := range records {
		state := task.Succeeded
		if n%10 == 5 {
			state = task.Failed
		}

		w.putEnded(ref, n, state)
		w.putEnded(other, n, state)
	}

	all, err := w.History(t.Context(), ref, true)
	ok(t, err)

	if len(all) != records || all[0].ID != tickRun(ref, 0).ID || all[records-1].ID != tickRun(ref, records-1).ID || !all[0].Succeeded || all[5].Succeeded {
		t.Fatalf("%v", all)
	}

	keys, err := w.History(t.Context(), ref, false)
	ok(t, err)

	if len(keys) != records || keys[7].ID != all[7].ID {
		t.Fatalf("%v", keys)
	}

	left := all
	for _, gone := range [][2]int{{0, 3}, {1, 2}, {2, 100}, {1, 119}} { // the records to trim, from and to, among those that are left
		_, before := w.mark()
		ok(t, w.TrimHistory(t.Context(), w.fences, ref, slices.Concat(left[gone[0]:gone[1]], left[gone[1]+2:gone[1]+3])))
		left = slices.Concat(left[:gone[0]], left[gone[1]:gone[1]+2], left[gone[1]+3:])
		now, err := w.History(t.Context(), ref, true)
		ok(t, err)

		if !slices.Equal(now, left) {
			t.Errorf("without %v there are %v, want %v", gone, now, left)
		}

		if _, after := w.mark(); after != before {
			t.Error("it moved the watermark: a commit in flight would be lost")
		}
	}

	between := tickRun(ref, 60)
	between.ID += "-late" // a record that was added after all were listed
	w.put(w.keys.Ended(ref, between.ID), `{"state":"failed"}`)
	ok(t, w.TrimHistory(t.Context(), w.fences, ref, all))

	if now, _ := w.History(t.Context(), ref, true); len(now) != 1 || now[0].ID != between.ID {
		t.Errorf("of what has come since stays %v", now)
	}

	if left, _ := w.History(t.Context(), other, false); len(left) != records {
		t.Errorf("a neighbour has %d left", len(left))
	}

	w.own(ref.Shard, "n2")
	is(t, w.TrimHistory(t.Context(), w.fences, other, all), task.ErrFenced)
	w.fences.Owner = w.own(ref.Shard, node)
	w.del(w.keys.Node(node))
	is(t, w.TrimHistory(t.Context(), w.fences, other, all), task.ErrFenced)

	if left, _ := w.History(t.Context(), other, false); len(left) != records {
		t.Errorf("a fenced owner left %d", len(left))
	}
}

// More keys than fit on a page are written while they are read. All results are of one revision.
func TestListsOfManyKeysAreOfOneRevision(t *testing.T) {
	w := newWorld(t)
	const n = 2100
	for first := 0; first < n; first += 100 {
		var ops []clientv3.Op
		for i := first; i < first+100; i++ {
			ops = append(ops, clientv3.OpPut(w.keys.Run(node, ref, fmt.Sprintf("%05d", i)), "{}"))
		}

		_, err := w.etcd.Txn(t.Context()).Then(ops...).Commit()
		ok(t, err)
	}

	keys, _, err := w.ScanActive(t.Context())
	ok(t, err)
	held, err := w.ActiveOf(t.Context(), ref)
	ok(t, err)

	if len(keys) != n || len(held) != n || keys[n-1].Run != "02099" || held[n-1].ID != "02099" {
		t.Errorf("%d keys, %d attempts", len(keys), len(held))
	}
}

func TestDecided_IsInTheOrderOfTimeAndTask(t *testing.T) {
	at := task.At(noon)
	before, after := task.At(noon.Add(-1e6)), task.At(noon.Add(1e6))
	for _, c := range []struct {
		last, name string
		tick       task.Time
		want       bool
	}{
		{"", "default/a", before, true}, {"", "default/a", at, true}, {"", "default/a", after, false},
		{"default/b", "default/c", before, true}, {"default/b", "default/a", at, true}, {"default/b", "default/b", at, true},
		{"default/b", "default/c", at, false}, {"default/b", "default/a", after, false},
	} {
		if got := (record.Watermark{Time: at, Last: c.last}).Decided(c.tick, c.name); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
