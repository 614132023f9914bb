package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// A task that was deleted and created again between two rounds is another task. Nothing of the old one may
// affect it or other tasks.
func TestWorker_TaskCreatedAgainBeforeTheNextRoundIsServed(t *testing.T) {
	t.Parallel()

	for name, then := range map[string]func(*world){
		"left alone":  func(*world) {},
		"then paused": func(w *world) { w.pause("a") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1").judged()
			h := w.work("n1")
			w.create("a", every("1s"))
			w.create("b", every("1s"))
			h.decide(1)
			w.finish("a", task.Succeeded)
			w.finish("b", task.Succeeded)
			h.decide(1.5)
			w.at(1.5)
			w.remove("a")
			w.create("a", every("1s"))
			h.see()
			h.blind(1.6)
			then(w)

			for s := 2.0; s < 5; s++ {
				h.decide(s + 0.6)

				for _, n := range []string{"a", "b"} {
					for _, held := range w.active(n) {
						w.end(held, task.Succeeded)
					}
				}

				h.decide(s + 0.7)
			}

			if got := len(w.story("b")); got != 4 {
				t.Errorf("b: %q", w.story("b"))
			}

			if got := len(w.story("a")); name == "left alone" && got != 3 {
				t.Errorf("a: %q", w.story("a"))
			}
		})
	}
}

// A queue record that cannot be read has the key of the next tick's run. That tick must not block the
// shard.
func TestWorker_UnreadableRecordInTheWayOfATickHoldsUpNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("1s"), on("role = nowhere"))
	w.create("b", every("1s"), allow)
	h.see()
	id := task.RunID(sec(2), h.state.records.TaskNamed("default/a").UID())
	h.decide(1)
	w.put(w.store.Keys().Queued(ref("a"), id), "{garbage")

	for s := 2.0; s < 6; s++ {
		h.decide(s)
	}

	if got := len(w.story("b")); got != 5 {
		t.Errorf("b: %q", w.story("b"))
	}
}

// A task for which every commit fails causes one reload. It has a commit every five seconds then, and gets its
// ticks when the commits succeed.
func TestWorker_SetsATaskAsideThatFailsForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("1s"))
	w.create("b", every("1s"), allow)
	h.see()
	key := w.store.Keys().Entry(ref("a"))
	entry, err := w.store.Client().Get(t.Context(), key)
	w.ok(err)

	// The task changes before each commit for it.
	h.gate.alter = func(t kv.Txn) kv.Txn {
		if slices.ContainsFunc(t.If, func(c clientv3.Cmp) bool { return string(c.KeyBytes()) == key }) {
			w.put(key, string(entry.Kvs[0].Value))
		}
		return t
	}

	reloads, at := 0, 0.0
	for at < 300 {
		at++

		switch err := h.try(at); {
		case errors.Is(err, errReload):
			reloads++
			h.open()
			w.ok(h.try(at))
		case err != nil:
			t.Fatal(err)
		}

		if got := w.story("b"); len(got) != int(at) {
			t.Fatalf("at +%g: b: %q", at, got)
		}
	}

	if reloads != 1 {
		t.Errorf("loaded anew %d times", reloads)
	}

	h.gate.alter = nil
	w.ok(h.try(305))
	w.want("a", "+1..+304 missed 304 came_to_light_late", "+305 dispatched")
}

// Each time that the commits of a task fail repeatedly, the shard is opened again once.
func TestWorker_ForgetsThatATaskWasStubbornWhenItGoesThrough(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a")
	h.state.reopenedFor["default/a"] = true
	h.decide(1)
	w.want("a", "+1 dispatched")

	if len(h.state.reopenedFor) != 0 {
		t.Errorf("the shard was reopened for %v", h.state.reopenedFor)
	}
}

func TestWorker_WatermarkWithoutContentIsDamage(t *testing.T) {
	t.Parallel()

	for _, value := range []string{"{}", "null", `{"time":"2026-01-02T12:00:00.000Z"}`, `{"nonce":"x"}`} {
		w := newWorld(t, "n1")
		w.create("a", every("1s"))
		w.work("n1").decide(2)
		before := w.story("a")
		w.put(w.store.Keys().Watermark(0), value)

		h := w.worker("n1", w.assign("n1"))
		if err := h.load(); !errors.Is(err, task.ErrInvalid) {
			t.Errorf("a watermark of %s opens: %v", value, err)
		}

		if after := w.story("a"); len(after) != len(before) {
			t.Errorf("ticks were decided again: %q, then %q", before, after)
		}
	}
}

// A key below the key of an entry belongs to no task. Neither the key nor its deletion affects the task.
func TestWorker_StrangeKeyBelowAnEntryConcernsNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("1s"), allow)
	key := w.store.Keys().Entry(ref("a")) + "/x"
	w.put(key, "{}")
	h.decide(1)
	w.delete(key)
	h.decide(2)
	w.want("a", "+1 dispatched", "+2 dispatched")
}

// No commit has room for an entry that is far larger than the API accepts. It must not block the shard.
func TestWorker_AnEntryThatFitsIntoNoCommitHoldsUpNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("1s"))
	w.create("b", every("1s"), allow)
	key := w.store.Keys().Entry(ref("a"))
	e, err := w.store.Client().Get(t.Context(), key)
	w.ok(err)
	w.put(key, strings.Replace(string(e.Kvs[0].Value), `{"noop":{}`, fmt.Sprintf(`{"noop":{},"x":%q`, strings.Repeat("x", 1_400_000)), 1))

	for s := 1.0; s < 4; s++ {
		h.decide(s)
	}

	w.want("a")
	w.want("b", "+1 dispatched", "+2 dispatched", "+3 dispatched")
}
