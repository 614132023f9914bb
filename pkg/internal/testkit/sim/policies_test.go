package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/check"
	"github.com/carillonhq/carillon/pkg/internal/testkit/recorder"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestPolicies_InVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(simulationStart))
		life, end := context.WithCancel(context.WithoutCancel(t.Context()))
		w := newStage(t, life)
		w.play()
		end()
		w.background.Wait()
		w.etcd.Close()
		w.store.Close()
		w.judge(checkEvents(w.store.Events()))
	})
}

// In virtual time and on a real etcd, each policy has the same outcomes, to the tick, although the node that owns
// all shards is killed in the middle. If the machine stood still during the story, only the guarantees were judged,
// and the story is repeated.
func TestPolicies_OnEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("forty seconds of real time: make test-cluster")
	}

	t.Parallel()

	for try, exact := 1, false; !exact && try <= 3 && !t.Failed(); try++ {
		t.Run(fmt.Sprint(try), func(t *testing.T) { exact = playOnEtcd(t) })
	}
}

func playOnEtcd(t *testing.T) (exact bool) {
	server := kvtest.StartServer(t)
	life, end := context.WithCancel(context.WithoutCancel(t.Context()))
	w := newStage(t, life)
	w.dial = func(context.Context) *clientv3.Client { return server.Dial().Client }
	w.etcd = server.Client()
	w.admin = store.New(w.etcd, kv.Direct(w.etcd), w.admin.Keys())

	recording, err := recorder.Start(life, w.etcd, w.admin.Keys())
	if err != nil {
		t.Fatal(err)
	}

	w.stood = &stood{}
	w.background.Go(func() { w.stood.watch(life, w.etcd) })
	w.play()
	ctx, cancel := context.WithTimeout(life, time.Minute)
	defer cancel()

	events, err := recording.Stop(ctx)
	if err != nil {
		t.Fatal(err)
	}

	end()
	w.background.Wait()
	w.judge(events)

	return w.exact()
}

// stage is the cluster in which the story of the policies takes place.
type stage struct {
	*world
	zero               time.Time
	works, owner, heir *node
	stood              *stood // nil in virtual time
}

// stood measures how long the machine, or etcd, has stood still. Ticks, runs and calls of the story are half a
// second apart, so the outcomes are exact only if everything takes less time than that.
type stood struct {
	mu    sync.Mutex
	most  time.Duration
	began time.Time // of the measurement in progress; zero: none
}

const (
	stillEnough = 200 * time.Millisecond
	eachLook    = 20 * time.Millisecond
)

func (s *stood) watch(ctx context.Context, etcd *kv.Client) {
	for {
		s.begin(time.Now())

		if !clock.Sleep(ctx, eachLook) {
			break
		}
		if _, err := etcd.Put(ctx, "/stood", ""); err != nil && ctx.Err() != nil {
			break
		}

		s.soFar()
	}

	s.begin(time.Time{})
}

// begin records that a measurement has begun; zero: none is in progress any more.
func (s *stood) begin(began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = began
}

// soFar returns the longest pause so far. A pause in progress counts, because a call may have failed during it.
func (s *stood) soFar() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()

	if !s.began.IsZero() {
		s.most = max(s.most, time.Since(s.began)-eachLook)
	}

	return s.most
}

// exact reports whether the story continued without a pause.
func (w *stage) exact() bool {
	return w.stood == nil || w.stood.soFar() < stillEnough
}

// differs reports a wrong outcome, unless a pause explains it.
func (w *stage) differs(format string, args ...any) {
	w.t.Helper()

	if w.exact() {
		w.t.Errorf(format, args...)
		return
	}

	w.t.Logf("after a pause of %s: %s", w.stood.soFar(), fmt.Sprintf(format, args...))
}

func newStage(t *testing.T, life context.Context) *stage {
	w := &stage{world: newWorld(t, life, 1, Options{Shards: 8, Slots: 100, Plain: true})}
	w.works, w.owner, w.heir = w.addNode(), w.addNode(), w.addNode()
	w.works.roles, w.owner.roles, w.heir.roles = []string{task.RoleExecutor}, []string{task.RoleScheduler}, []string{task.RoleScheduler}
	return w
}

// at waits until that many seconds of the story have passed.
func (w *stage) at(seconds float64) {
	w.sleep(time.Until(w.zero.Add(time.Duration(seconds * float64(time.Second)))))
}

// play executes the story.
func (w *stage) play() {
	w.works.startDaemon()
	w.owner.startDaemon()
	c := w.ready()
	w.zero = time.Now().Add(7 * time.Second).Truncate(time.Second)

	for _, s := range situations {
		w.must(func() error { _, err := c.Tasks.Apply(w.life, s.task(w.zero), client.ApplyOptions{}); return err })
	}

	w.must(func() error { _, err := c.Tasks.Apply(w.life, w.chained(), client.ApplyOptions{}); return err })

	if late := time.Since(w.zero); late > 0 {
		w.differs("the story should have begun %s ago", late)
	}

	w.at(2.9)
	w.must(func() error {
		return w.requestByPath(w.life, w.works, http.MethodPut, freezePath(frozenNamespace), map[string]string{"reason": "frost"}, nil)
	})

	w.at(5)
	w.must(func() error {
		_, err := w.patch(c, "paused-until", map[string]any{"paused": true, "paused_until": task.At(w.zero.Add(17 * time.Second)), "pause_reason": "again"})
		return err
	})

	w.at(ownerDies)
	w.owner.killDaemon(true)
	w.at(heirComes)
	w.heir.startDaemon()
	w.at(heirIsThere)
	w.at(17)
	w.must(func() error {
		return w.requestByPath(w.life, w.works, http.MethodDelete, freezePath(frozenNamespace), nil, nil)
	})
	w.at(19.2)
	w.must(func() error { _, err := c.Tasks.Resume(w.life, simNamespace, "pause-after", 0); return err })
	w.at(20.5)
	w.must(func() error {
		runs, err := c.Runs.ListByTask(w.life, simNamespace, "replace", client.RunListOptions{})
		for _, r := range runs {
			if err == nil && r.State.Active() {
				_, err = c.Runs.Cancel(w.life, simNamespace, "replace", r.ID)
			}
		}

		return err
	})

	w.at(storyEnds)

	if !w.waitUntil(2*time.Minute, w.isIdle) {
		w.t.Error("there are runs that do not end")
	}

	w.stopProcesses()
}

// chained returns a task whose ticks count from the ends of its runs.
func (w *stage) chained() task.Spec {
	s := situation{name: "after-completion", runs: time.Second}.task(w.zero)
	s.Schedule = task.Schedules{"@every 4s after completion"}
	s.Start, s.End = task.At(w.zero.Add(time.Second)), task.At(w.zero.Add(17500*time.Millisecond))
	return s
}

// ready waits for the first owner, and returns a client of the node that is not killed.
func (w *stage) ready() *client.Client {
	var c *client.Client
	owned := w.waitUntil(time.Minute, func() bool {
		if c = w.clientOf(w.works); c == nil {
			return false
		}
		st, err := c.Cluster.Status(w.life)
		return err == nil && st.ShardsOwned == st.Shards && st.NodesReady == 2
	})

	if !owned {
		w.abort(fmt.Errorf("the shards have no owner:\n%s", strings.Join(w.story, "\n")))
	}

	return c
}

// must makes a call that the story requires. After a pause of the machine it repeats a call that fails.
func (w *stage) must(do func() error) {
	w.t.Helper()
	err := do()
	for range 20 {
		if err == nil || w.exact() {
			break
		}

		w.t.Logf("%s into the story: %v", time.Since(w.zero), err)
		w.sleep(500 * time.Millisecond)
		err = do()
	}

	if err != nil {
		w.abort(fmt.Errorf("%s into the story: %w", time.Since(w.zero), err))
	}
}

func (w *stage) patch(c *client.Client, name string, fields map[string]any) (client.Task, error) {
	b, err := json.Marshal(fields)
	if err != nil {
		return client.Task{}, err
	}
	return c.Tasks.Patch(w.life, simNamespace, name, b, 0)
}

// judge compares the outcomes with the expected ones.
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
				w.differs("%s, the tick at %gs: %q, want %q", s.name, tick, got, s.want[i])
			}
			delete(came[s.name], at.UnixMilli())
		}

		for at, what := range came[s.name] {
			w.differs("%s: a tick that there is not, at %s: %q", s.name, time.UnixMilli(at).Sub(w.zero), what)
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
		if k, ok := w.admin.Keys().ParseShard(e.Key); ok && k.Kind == record.KindEnded && k.Ref.Name == "after-completion" && !e.Deleted {
			r, err := record.DecodeEnded(k, e.Value)
			if err != nil {
				w.abort(err)
			}
			runs = append(runs, r)
		}
	}

	if len(runs) != 3 || !runs[0].ScheduledTime.Equal(w.zero.Add(time.Second)) {
		w.differs("after completion there were %d runs, want 3: %+v", len(runs), runs)
	}

	for i := 1; i < len(runs); i++ {
		if gap := runs[i].ScheduledTime.Sub(runs[i-1].EndedAt.Time); gap != 4*time.Second {
			w.t.Errorf("after completion: the tick comes %s after the end", gap)
		}
	}
}

// outcomesOf returns the outcome of each tick, by task and tick: why it waited, and how it ended. The ticks of a
// range are those that the task's schedule has there. Waiting for the catch-up rate is not included.
func outcomesOf(keys record.Keys, events []check.Event) map[string]map[int64]string {
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
		case record.KindEntry:
			if entry, err := record.DecodeEntry(e.Value); err == nil {
				ticks[name] = instants(entry.Schedule)
			}
		case record.KindQueued:
			w, err := record.DecodeWaiting(k, e.Value)
			if id := name + "/" + k.Run; err == nil && w.Reason != task.ReasonCatchUp && !slices.Contains(waited[id], w.Reason) {
				waited[id] = append(waited[id], w.Reason)
			}
		case record.KindEnded:
			r, err := record.DecodeEnded(k, e.Value)
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

// instants returns the ticks of a list of @at.
func instants(list task.Schedules) (all []int64) {
	for _, expr := range list {
		if at, err := time.Parse(time.RFC3339Nano, strings.TrimPrefix(expr, "@at ")); err == nil {
			all = append(all, at.UnixMilli())
		}
	}

	return all
}
