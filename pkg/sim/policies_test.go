package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/check"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Each policy comes to the same, to the tick, in virtual time and on a real etcd, though the node that owns all shards is
// killed in the middle.

func TestPolicies_InVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(begin))
		life, end := context.WithCancel(context.WithoutCancel(t.Context()))
		w := newStage(t, life)
		w.play()
		end()
		w.background.Wait()
		w.etcd.Close()
		w.store.Close()
		w.judge(history(w.store.Events()))
	})
}

func TestPolicies_OnEtcd(t *testing.T) {
	t.Parallel()
	server := kvtest.StartServer(t)
	life, end := context.WithCancel(context.WithoutCancel(t.Context()))
	w := newStage(t, life)
	w.dial = func(context.Context) *clientv3.Client { return server.Dial().Client }
	w.etcd = server.Client()
	w.admin = store.New(w.etcd, kv.Direct(w.etcd), w.admin.Keys())
	recorder, err := check.Record(life, w.etcd, w.admin.Keys())
	if err != nil {
		t.Fatal(err)
	}
	w.play()
	ctx, cancel := context.WithTimeout(life, 20*time.Second)
	defer cancel()
	events, err := recorder.Stop(ctx)
	if err != nil {
		t.Fatal(err)
	}
	end()
	w.background.Wait()
	w.judge(events)
}

// stage is a cluster in which the story of the policies takes place.
type stage struct {
	*world
	zero               time.Time
	works, owner, heir *node
}

func newStage(t *testing.T, life context.Context) *stage {
	w := &stage{world: newWorld(t, life, 1, Options{Shards: 8, Slots: 100, Plain: true})}
	w.works, w.owner, w.heir = w.addNode(), w.addNode(), w.addNode()
	w.works.roles, w.owner.roles, w.heir.roles = []string{task.RoleExecutor}, []string{task.RoleScheduler}, []string{task.RoleScheduler}
	return w
}

// at waits until so many seconds of the story have passed.
func (w *stage) at(seconds float64) {
	w.pass(time.Until(w.zero.Add(time.Duration(seconds * float64(time.Second)))))
}

// play lives through the story.
func (w *stage) play() {
	w.works.start()
	w.owner.start()
	c := w.ready()
	w.zero = time.Now().Add(7 * time.Second).Truncate(time.Second)
	for _, s := range situations {
		w.must(c.Apply(w.life, s.task(w.zero), client.ApplyOptions{}))
	}
	w.must(c.Apply(w.life, w.chained(), client.ApplyOptions{}))
	if late := time.Since(w.zero); late > 0 {
		w.fail(fmt.Errorf("the story should have begun %s ago", late))
	}
	w.at(2.9)
	w.must(0, w.curl(w.life, w.works, http.MethodPut, freezePath("frosty"), map[string]string{"reason": "frost"}, nil))
	w.at(5)
	w.must(w.patch(c, "paused-until", map[string]any{"paused": true, "paused_until": task.At(w.zero.Add(17 * time.Second)), "pause_reason": "again"}))
	w.at(ownerDies)
	w.owner.kill(true)
	w.at(heirComes)
	w.heir.start()
	w.at(heirIsThere)
	w.at(17)
	w.must(0, w.curl(w.life, w.works, http.MethodDelete, freezePath("frosty"), nil, nil))
	w.at(19.2)
	w.must(c.Resume(w.life, namespace, "pause-after", 0))
	w.at(20.5)
	runs, err := c.Runs(w.life, namespace, "replace", client.RunFilter{})
	w.must(runs, err)
	for _, r := range runs {
		if r.State.Active() {
			w.must(c.Cancel(w.life, namespace, "replace", r.ID))
		}
	}
	w.at(storyEnds)
	if !w.until(30*time.Second, w.quiet) {
		w.t.Error("there are runs that do not end")
	}
	w.stop()
}

// chained is a task whose ticks follow from the ends of its runs.
func (w *stage) chained() task.Spec {
	s := situation{name: "after-completion", runs: time.Second}.task(w.zero)
	s.Schedule = task.Schedules{"@every 4s after completion"}
	s.Start, s.End = task.At(w.zero.Add(time.Second)), task.At(w.zero.Add(17500*time.Millisecond))
	return s
}

// ready waits for the first owner, and returns a client of the node that lives through all.
func (w *stage) ready() *client.Client {
	var c *client.Client
	owned := w.until(20*time.Second, func() bool {
		if c = w.client(w.works); c == nil {
			return false
		}
		st, err := c.Cluster(w.life)
		return err == nil && st.ShardsOwned == st.Shards && st.NodesReady == 2
	})
	if !owned {
		w.fail(fmt.Errorf("the shards have no owner:\n%s", strings.Join(w.story, "\n")))
	}
	return c
}

func (w *stage) must(_ any, err error) {
	w.t.Helper()
	if err != nil {
		w.fail(fmt.Errorf("%s into the story: %w", time.Since(w.zero), err))
	}
}

func (w *stage) patch(c *client.Client, name string, fields map[string]any) (client.Task, error) {
	b, err := json.Marshal(fields)
	if err != nil {
		return client.Task{}, err
	}
	return c.Patch(w.life, namespace, name, b, 0)
}

// judge holds what came of it against what should have.
func (w *stage) judge(events []check.Event) {
	t, keys := w.t, w.admin.Keys()
	r := check.Check(keys, events, check.Options{Until: w.zero.Add((storyEnds - 1) * time.Second), Ended: true, Remembered: true})
	if !r.OK() {
		t.Errorf("%s", r.String())
	}
	for _, v := range check.CheckProbeLog(strings.NewReader(w.probes.log.String()), keys, events) {
		t.Error(v)
	}
	came := outcomesOf(keys, events)
	for _, s := range situations {
		for i, tick := range s.ticks {
			at := w.zero.Add(time.Duration(tick * float64(time.Second)))
			if got := came[s.name][at.UnixMilli()]; got != s.want[i] {
				t.Errorf("%s, the tick at %gs: %q, want %q", s.name, tick, got, s.want[i])
			}
			delete(came[s.name], at.UnixMilli())
		}
		for at, what := range came[s.name] {
			t.Errorf("%s: a tick that there is not, at %s: %q", s.name, time.UnixMilli(at).Sub(w.zero), what)
		}
	}
	w.judgeChain(events)
	if t.Failed() {
		path := t.TempDir()
		t.Logf("%s\n%s", path, strings.Join(w.story[max(0, len(w.story)-60):], "\n"))
	}
}

// judgeChain checks that each tick of a schedule after completion is 4 s after the end of the run before.
func (w *stage) judgeChain(events []check.Event) {
	var runs []task.Run
	for _, e := range events {
		if k, ok := w.admin.Keys().ParseShard(e.Key); ok && k.Kind == store.KindEnded && k.Ref.Name == "after-completion" && !e.Deleted {
			r, err := store.DecodeEnded(k, e.Value)
			w.must(r, err)
			runs = append(runs, r)
		}
	}
	if len(runs) != 3 || !runs[0].ScheduledTime.Equal(w.zero.Add(time.Second)) {
		w.t.Errorf("after completion there were %d runs, want 3: %+v", len(runs), runs)
	}
	for i := 1; i < len(runs); i++ {
		if gap := runs[i].ScheduledTime.Sub(runs[i-1].EndedAt.Time); gap != 4*time.Second {
			w.t.Errorf("after completion: the tick comes %s after the end", gap)
		}
	}
}

// outcomesOf is what each tick came to, by task and tick: why it waited, and how it ended. Ticks of a range are those that
// the task's schedule has there; those that wait for others to be caught up with are not said to.
func outcomesOf(keys store.Keys, events []check.Event) map[string]map[int64]string {
	ticks := map[string][]int64{}
	waited := map[string][]string{}
	came := map[string]map[int64]string{}
	for _, e := range events {
		k, ok := keys.ParseShard(e.Key)
		if !ok || e.Deleted {
			continue
		}
		name := k.Ref.Name
		switch k.Kind {
		case store.KindEntry:
			if entry, err := store.DecodeEntry(e.Value); err == nil {
				ticks[name] = instants(entry.Schedule)
			}
		case store.KindQueued:
			w, err := store.DecodeWaiting(k, e.Value)
			if id := name + "/" + k.Run; err == nil && w.Reason != task.ReasonCatchUp && !slices.Contains(waited[id], w.Reason) {
				waited[id] = append(waited[id], w.Reason)
			}
		case store.KindEnded:
			r, err := store.DecodeEnded(k, e.Value)
			if err != nil || k.Late {
				continue
			}
			what := strings.Join(append(waited[name+"/"+k.Run], endOf(r)), ", ")
			if came[name] == nil {
				came[name] = map[int64]string{}
			}
			for _, at := range ticks[name] {
				if first := r.ScheduledTime.UnixMilli(); at == first || !r.Last.IsZero() && at > first && at <= r.Last.UnixMilli() {
					came[name][at] = what
				}
			}
		}
	}
	return came
}

func endOf(r task.Run) string {
	text := string(r.State)
	if r.State != task.Succeeded {
		text += " (" + r.Reason + ")"
	}
	if len(r.Attempts) > 0 {
		text += fmt.Sprintf(" at attempt %d", len(r.Attempts)+1)
	}
	return text
}

// instants are the ticks of a list of @at.
func instants(list task.Schedules) (all []int64) {
	for _, expr := range list {
		if at, err := time.Parse(time.RFC3339Nano, strings.TrimPrefix(expr, "@at ")); err == nil {
			all = append(all, at.UnixMilli())
		}
	}
	return all
}
