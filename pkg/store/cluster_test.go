package store_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// newEmpty returns a store whose cluster has not been created yet.
func newEmpty(t *testing.T) *world {
	t.Helper()
	keys := testKeys(t, ownPrefix(t))
	w := &world{T: t, keys: keys, etcd: shared, writes: &unreliable{}}
	w.Store = w.writes.store(keys)

	return w
}

// checkMarks requires a watermark at time zero for each shard of a cluster.
func (w *world) checkMarks(c task.Cluster) {
	w.Helper()

	for id := range c.Shards {
		mod, _, value := w.at(w.keys.Watermark(id))
		m, err := record.DecodeWatermark([]byte(value))
		if mod == 0 || err != nil || !m.Time.Equal(time.UnixMilli(0)) || m.Last != "" || m.Seen != 0 || m.Nonce == "" {
			w.Fatalf("the watermark of shard %d of %d is %q at %d: %v", id, c.Shards, value, mod, err)
		}
	}
}

func TestBootstrap_AllThatStartTogetherAgree(t *testing.T) {
	w := newEmpty(t)
	counts := []int{256, 1, 64, 130, 256}
	var wg sync.WaitGroup

	clusters, makers, errs := make([]task.Cluster, len(counts)), make([]bool, len(counts)), make([]error, len(counts))
	for i, n := range counts {
		wg.Go(func() {
			clusters[i], makers[i], errs[i] = w.other().Bootstrap(t.Context(), n, noon, store.OpenAccess())
		})
	}

	wg.Wait()
	ok(t, errors.Join(errs...))

	maker := slices.Index(makers, true)
	if maker < 0 || slices.Contains(makers[maker+1:], true) {
		t.Fatalf("made by %v", makers)
	}

	for i, c := range clusters {
		if !reflect.DeepEqual(c, clusters[maker]) {
			t.Errorf("%d has %+v, the maker %+v", i, c, clusters[maker])
		}
	}

	if c := clusters[maker]; c.Shards != counts[maker] || c.ID == "" || c.Epoch != 1 || c.Schema != 1 || !c.CreatedAt.Equal(noon) {
		t.Errorf("the cluster is %+v", c)
	}

	w.checkMarks(clusters[maker])
	again, made, err := w.Bootstrap(t.Context(), 7, noon.Add(time.Hour), store.OpenAccess())
	if err != nil || made || !reflect.DeepEqual(again, clusters[maker]) {
		t.Errorf("later: %+v, %v, %v", again, made, err)
	}
}

func TestBootstrap_GoesOnAfterACrashInTheMiddle(t *testing.T) {
	w := newEmpty(t)
	for crash := 1; crash <= 3; crash++ { // 130 shards are three requests; the fourth writes the cluster's record
		ctx, cancel := context.WithCancel(t.Context())
		w.writes.next()
		w.writes.before = func(n int) {
			if n == crash {
				cancel()
			}
		}

		if _, _, err := w.Bootstrap(ctx, 130, noon, store.OpenAccess()); err == nil {
			t.Fatal("it did not crash")
		}

		if w.exists(w.keys.Cluster()) {
			t.Fatal("there is a cluster before its watermarks")
		}
	}

	w.writes.before = nil
	var before int64
	before, _, _ = w.at(w.keys.Watermark(0))

	c, made, err := w.Bootstrap(t.Context(), 130, noon, store.OpenAccess())
	if err != nil || !made {
		t.Fatalf("%v, %v", made, err)
	}

	w.checkMarks(c)

	if mod, _, _ := w.at(w.keys.Watermark(0)); before == 0 || mod != before {
		t.Error("a watermark was made twice")
	}
}

// The node that has created the cluster knows that, even if the answer was lost. Lost requests of a node that was
// late change nothing.
func TestBootstrap_IsSettled(t *testing.T) {
	for _, fates := range [][]fate{{answerLost}, {requestLost}, {arrives, answerLost}, {arrives, requestLost}, {arrives, delayed}, {delayed, delayed}} {
		t.Run(fmt.Sprint(fates), func(t *testing.T) {
			t.Parallel()
			w := newEmpty(t)
			w.writes.next(fates...)

			c, made, err := w.Bootstrap(t.Context(), 10, noon, store.OpenAccess())
			if err != nil || !made {
				t.Fatalf("made %v: %v", made, err)
			}

			if n := w.writes.release(t.Context()); n != 0 {
				t.Errorf("%d late copies changed something", n)
			}

			if again, made, _ := w.Bootstrap(t.Context(), 10, noon, store.OpenAccess()); made || !reflect.DeepEqual(again, c) {
				t.Errorf("%+v became %+v, made %v", c, again, made)
			}

			w.checkMarks(c)
		})
	}
}

func TestBootstrap_RestsBetweenItsAttempts(t *testing.T) {
	w := newEmpty(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	began := time.Now()
	w.writes.next(slices.Repeat([]fate{requestLost}, 4)...)

	if _, made, err := w.Bootstrap(ctx, 4, noon, store.OpenAccess()); err != nil || !made {
		t.Fatalf("made it: %t, %v", made, err)
	}

	if took := time.Since(began); took < (20+40+80+160)*time.Millisecond {
		t.Errorf("four writes were lost, and it was made in %v", took)
	}
}

func TestBootstrap_AnUnreadableClusterIsNotMadeAnew(t *testing.T) {
	w := newEmpty(t)
	w.put(w.keys.Cluster(), "{")
	_, made, err := w.Bootstrap(t.Context(), 4, noon, store.OpenAccess())
	is(t, err, task.ErrInvalid)

	if _, _, value := w.at(w.keys.Cluster()); made || value != "{" {
		t.Error("it was made anew")
	}
}

func TestRegister_HoldsANameWhileItsSessionLives(t *testing.T) {
	w := newWorld(t)
	lease, err := w.etcd.Grant(t.Context(), 600)
	ok(t, err)
	n := task.Node{Name: "n2", Instance: "i2", State: task.NodeReady, Slots: 4, Shards: 9, Revision: 9, Labels: map[string]string{"os": "linux"}}
	f, holder, err := w.Register(t.Context(), n, lease.ID, w.clusterRecord())
	ok(t, err)

	if mod, create, _ := w.at(w.keys.Node("n2")); holder != nil || f != kv.CreateFence(w.keys.Node("n2"), create) || mod != create {
		t.Errorf("fence %+v, holder %+v", f, holder)
	}

	again, _, err := w.Register(t.Context(), n, lease.ID, w.clusterRecord()) // the answer was lost, so it registers again
	if err != nil || again != f {
		t.Errorf("%+v, %v", again, err)
	}

	rival := n
	rival.Instance = "i3"
	_, holder, err = w.Register(t.Context(), rival, lease.ID, w.clusterRecord())
	is(t, err, task.ErrExists)

	if holder == nil || holder.Instance != "i2" || holder.Name != "n2" {
		t.Errorf("held by %+v", holder)
	}

	other, err := w.etcd.Grant(t.Context(), 600)
	ok(t, err)
	_, _, err = w.Register(t.Context(), n, other.ID, w.clusterRecord()) // the same instance with another session
	is(t, err, task.ErrExists)

	n.Running = 3
	ok(t, w.Announce(t.Context(), f, n, lease.ID))
	nodes, err := w.Nodes(t.Context())
	ok(t, err)

	i := slices.IndexFunc(nodes, func(x task.Node) bool { return x.Name == "n2" })
	if len(nodes) != 2 || i < 0 || nodes[i].Running != 3 || nodes[i].Revision != f.CreateRevision || nodes[i].Shards != 0 || nodes[i].Labels["os"] != "linux" {
		t.Errorf("nodes %+v", nodes)
	}

	_, err = w.etcd.Revoke(t.Context(), lease.ID)
	ok(t, err)

	if w.exists(w.keys.Node("n2")) {
		t.Fatal("the record outlived its lease")
	}

	is(t, w.Announce(t.Context(), f, n, lease.ID), task.ErrFenced)
	_, _, err = w.Register(t.Context(), n, lease.ID, w.clusterRecord())
	is(t, err, task.ErrUnavailable)
	if errors.Is(err, task.ErrUnknown) {
		t.Error("a lease that is gone is an unknown outcome")
	}

	next := w.register("n2")
	is(t, w.Announce(t.Context(), f, n, other.ID), task.ErrFenced)

	if next == f {
		t.Error("two sessions have one fence")
	}
}

// The record by which a node has decided to join is the one that the join compares.
func TestRegister_FailsIfTheRecordOfTheClusterHasChanged(t *testing.T) {
	w := newWorld(t)
	lease, err := w.etcd.Grant(t.Context(), 600)
	ok(t, err)

	there, err := w.Present(t.Context())
	ok(t, err)
	_, err = w.BeginEpoch(t.Context(), there, task.Restored{At: task.At(noon)}) // another history, which the node has not accepted
	ok(t, err)

	n := task.Node{Name: "n2", Instance: "i2", State: task.NodeReady, Epoch: there.Cluster.Epoch}
	for range 2 { // a second try with the same record fails, too
		_, holder, err := w.Register(t.Context(), n, lease.ID, there.Record())
		is(t, err, task.ErrConflict)

		if holder != nil || w.exists(w.keys.Node("n2")) {
			t.Errorf("it joined by an outdated record; held by %+v", holder)
		}
	}

	_, _, err = w.Register(t.Context(), n, lease.ID, w.clusterRecord())
	ok(t, err)
}

func TestNodes_LeavesOutWhatItCannotRead(t *testing.T) {
	w := newWorld(t)
	w.put(w.keys.Node("bad"), "{")

	nodes, err := w.Nodes(t.Context())
	if err != nil || len(nodes) != 1 || nodes[0].Name != node {
		t.Errorf("%+v, %v", nodes, err)
	}

	lease, err := w.etcd.Grant(t.Context(), 600)
	ok(t, err)
	_, holder, err := w.Register(t.Context(), task.Node{Name: "bad", Instance: "i"}, lease.ID, w.clusterRecord())
	is(t, err, task.ErrExists)

	if holder == nil || holder.Name != "bad" {
		t.Errorf("held by %+v", holder)
	}
}

func TestLeave_OnlyWithAnEmptyInbox(t *testing.T) {
	w := newWorld(t)
	w.create(ref)
	f := w.register("a")
	w.register("a-1")
	w.dispatch(ref, 1, "a-1") // in the inbox of a node with a similar name
	h := w.dispatch(ref, 2, "a")
	is(t, w.Leave(t.Context(), f, "a"), task.ErrConflict)

	if !w.exists(w.keys.Node("a")) {
		t.Fatal("it left its attempt behind")
	}

	ok(t, w.Finish(t.Context(), h, endOf(h, task.Succeeded), nil))
	ok(t, w.Leave(t.Context(), f, "a"))

	if w.exists(w.keys.Node("a")) || !w.exists(w.keys.Node("a-1")) {
		t.Error("the wrong one left")
	}

	next := w.register("a")
	is(t, w.Leave(t.Context(), f, "a"), task.ErrConflict) // with the fence of an earlier session

	if !w.exists(w.keys.Node("a")) {
		t.Error("it deleted the record of another session")
	}

	w.writes.next(requestLost)
	is(t, w.Leave(t.Context(), next, "a"), task.ErrUnknown)
}

// A dispatch and a leave happen at the same time. One of them fails.
func TestLeave_AndADispatchExcludeEachOther(t *testing.T) {
	w := newWorld(t)
	f := w.register("a")
	c := w.begin()
	dispatch(c, assigned(ref, 1, "a"), f.CreateRevision)
	ok(t, w.Leave(t.Context(), f, "a"))
	_, err := w.Commit(t.Context(), c)
	is(t, err, task.ErrConflict)

	if len(w.below(w.keys.Runs())) != 0 {
		t.Error("an attempt for a node that has left")
	}
}

// The first token is made by the transaction that makes the cluster's record, and by nothing else.
func TestBootstrap_MakesTheFirstTokenOnce(t *testing.T) {
	w := &world{T: t, keys: testKeys(t, ownPrefix(t)), etcd: shared, writes: &unreliable{}}
	w.Store = w.other()

	bootstrap := func(id string) (made bool, err error) {
		first := store.OpenAccess()
		first.Tokens = []record.Token{{Token: task.Token{ID: id, Subject: "user:ann"}, Hash: "h" + id}}
		_, made, err = w.other().Bootstrap(t.Context(), 2, noon, first)

		return made, err
	}

	var wg sync.WaitGroup
	made, errs := make([]bool, 6), make([]error, 6)
	for i := range errs {
		wg.Go(func() { made[i], errs[i] = bootstrap(strconv.Itoa(i)) })
	}

	wg.Wait()
	ok(t, errors.Join(errs...))
	id := strconv.Itoa(slices.Index(made, true))

	if ids := w.below(w.keys.Tokens()); !slices.Equal(ids, []string{id}) {
		t.Fatalf("%v made the record; there are the tokens %v", made, ids)
	}

	got, err := w.Token(t.Context(), id)
	if err != nil || got.Hash != "h"+id || got.Subject != "user:ann" {
		t.Errorf("%+v, %v", got, err)
	}

	_, err = w.Token(t.Context(), "nobody")
	is(t, err, task.ErrNotFound)
	is(t, w.CreateToken(t.Context(), record.Token{Token: task.Token{ID: id}}), task.ErrExists)

	_, created, _ := w.at(w.keys.Token(id))
	ok(t, w.DeleteToken(t.Context(), id, created))

	if again, err := bootstrap("again"); again || err != nil || len(w.below(w.keys.Tokens())) != 0 {
		t.Errorf("the token came back: %v, %v, %v", again, err, w.below(w.keys.Tokens()))
	}
}

// lead returns the fence of a new leadership.
func (w *world) lead(name string) kv.Fence {
	w.Helper()
	key := w.keys.Leader() + name
	return kv.CreateFence(key, w.put(key, name))
}

func TestAssign_WritesInChunksUnderItsTerm(t *testing.T) {
	w := newWorld(t)
	term := w.lead("n1")

	moves := make([]store.Move, 250)
	for i := range moves {
		moves[i] = store.Move{From: record.Owner{Shard: 1000 + i}, To: "n1"}
	}

	ok(t, w.Assign(t.Context(), term, moves, task.At(noon)))
	nodes, owners, err := w.Fleet(t.Context())
	ok(t, err)

	if len(owners) != 251 || len(nodes) != 1 {
		t.Fatalf("%d owners, %d nodes", len(owners), len(nodes))
	}

	o := owners[250]
	if o.Shard != 1249 || o.Node != "n1" || o.Term != term.CreateRevision || !o.Since.Equal(noon) || o.Fence == 0 || len(o.Previous) != 0 {
		t.Errorf("the owner is %+v", o)
	}

	if f := w.OwnerFence(o); f != kv.ModFence(w.keys.Owner(1249), o.Fence) {
		t.Errorf("its fence is %+v", f)
	}

	for i := range 8 { // the record keeps only some of the former owners
		ok(t, w.Assign(t.Context(), term, []store.Move{{From: o, To: "m" + strconv.Itoa(i)}}, task.At(noon.Add(time.Duration(i)*time.Hour))))
		owners, err := w.Owners(t.Context())
		ok(t, err)
		o = owners[250]
	}

	if len(o.Previous) != 5 || o.Previous[0].Node != "m6" || o.Previous[4].Node != "m2" || o.Previous[0].Since.Hour() != 18 {
		t.Errorf("remembers %+v", o.Previous)
	}
}

func TestAssign_IsFencedByItsTermAndByWhatItRead(t *testing.T) {
	w := newWorld(t)
	term := w.lead("n1")
	owners, err := w.Owners(t.Context())
	ok(t, err)
	move := []store.Move{{From: owners[0], To: "n2"}}
	w.own(owners[0].Shard, "n3")
	is(t, w.Assign(t.Context(), term, move, task.At(noon)), task.ErrConflict)
	w.del(w.keys.Owner(owners[0].Shard))
	is(t, w.Assign(t.Context(), term, move, task.At(noon)), task.ErrConflict)
	is(t, w.Assign(t.Context(), term, []store.Move{{From: record.Owner{Shard: 4}, To: "n1"}, move[0]}, task.At(noon)), task.ErrConflict)

	if w.exists(w.keys.Owner(4)) {
		t.Error("a part of a chunk was written")
	}

	w.del(term.Key)
	w.put(term.Key, "n1") // elected again, in another term
	is(t, w.Assign(t.Context(), term, []store.Move{{From: record.Owner{Shard: 4}, To: "n1"}}, task.At(noon)), task.ErrFenced)

	if len(w.below(w.keys.Owners())) != 0 {
		t.Error("it wrote after its term")
	}

	w.writes.next(requestLost)
	is(t, w.Assign(t.Context(), w.lead("n2"), []store.Move{{From: record.Owner{Shard: 4}, To: "n1"}}, task.At(noon)), task.ErrUnknown)
}

func TestOwners_WhatCannotBeReadHasNoNode(t *testing.T) {
	w := newWorld(t)
	rev := w.put(w.keys.Owner(5), "{")
	w.put(w.keys.Owners()+"-001", `{"node":"n1"}`)
	w.put(w.keys.Owners()+"x", `{"node":"n1"}`)
	owners, err := w.Owners(t.Context())
	ok(t, err)

	if len(owners) != 2 || owners[1].Shard != 5 || owners[1].Node != "" || owners[1].Fence != rev {
		t.Errorf("%+v", owners)
	}
}

func TestShardRecords_CountsEachShard(t *testing.T) {
	w := newWorld(t)
	w.create(ref)
	w.create(record.Ref{Namespace: "default", Name: "b", Shard: 3})
	w.put(w.keys.Queued(ref, "1"), "{}")
	w.put(w.keys.Ended(ref, "1"), "{}")
	w.del(w.keys.Watermark(2))
	w.put(w.keys.Watermark(4), "{")
	w.commit(w.begin())
	list, err := w.ShardRecords(t.Context(), 100)
	ok(t, err)

	if len(list) != 100 || list[3].Queued != 1 || list[3].Watermark.Time.UnixMilli() != 1000 || list[0].Watermark.Nonce == "" {
		t.Errorf("%d: %+v", len(list), list[:5])
	}

	tasks, err := w.TasksOfShards(t.Context(), 100, map[int]int{0: 7})
	ok(t, err)
	if len(tasks) != 100 || tasks[0] != 7 || tasks[3] != 2 || tasks[4] != 0 {
		t.Errorf("tasks: %v", tasks)
	}

	for _, id := range []int{2, 4, 99} { // damaged or absent watermarks do not hide the other shards
		if list[id] != (store.ShardRecords{}) {
			t.Errorf("shard %d is %+v", id, list[id])
		}
	}
}

func TestLeaderActiveRunsAndKeysOfATask(t *testing.T) {
	w := newWorld(t)
	w.create(ref)
	w.create(record.Ref{Namespace: "x", Name: "b", Shard: 3})
	w.register("n2")
	w.register("n2-1")
	w.dispatch(ref, 1, "n2")
	w.dispatch(ref, 2, "n2-1")
	w.lead("n1")
	w.lead("n0")

	leader, err := w.CurrentLeader(t.Context())
	ok(t, err)
	active, err := w.CountActiveRuns(t.Context())
	if err != nil || active != 2 || leader != "n1" {
		t.Errorf("leader %q, %d active runs, %v", leader, active, err)
	}
	if n, err := w.CountSpecs(t.Context()); err != nil || n != 2 {
		t.Errorf("%d tasks, %v", n, err)
	}

	keys, err := w.KeysOf(t.Context(), ref)
	ok(t, err)

	present := map[string]int{}
	for _, k := range keys {
		if k.Present {
			present[k.What]++
		}
	}

	if fmt.Sprint(present) != "map[entry:1 inbox:2 owner:1 spec:1 watermark:1]" {
		t.Errorf("%+v", keys)
	}

	members := w.Members(t.Context(), time.Minute)
	if len(members) != 1 || members[0].Err != nil || !members[0].Leader || members[0].Version == "" || members[0].Size == 0 {
		t.Errorf("%+v", members)
	}
}

func TestNoSpace_IsFoundBehindAnUnknownOutcome(t *testing.T) {
	full := fmt.Errorf("create task: %w", fmt.Errorf("%w: %w", task.ErrUnknown, rpctypes.ErrNoSpace))
	if !store.NoSpace(full) || store.NoSpace(task.ErrUnknown) || store.NoSpace(nil) {
		t.Error("a full etcd is not distinguished from other errors")
	}
}
