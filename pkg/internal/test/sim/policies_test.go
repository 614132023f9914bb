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
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/internal/test/recorder"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Verifies: G21, G22, G24
func TestPolicies_InVirtualTime(t *testing.T) {
	racetest.SkipIfShort(t)

	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(simulationStart))
		life, end := context.WithCancel(context.WithoutCancel(t.Context()))
		w := newPolicyCluster(t, life)
		w.play()
		end()
		w.background.Wait()
		w.etcd.Close()
		w.store.Close()
		w.judge(checkEvents(w.store.Events()))
	})
}

// In virtual time and on a real etcd, each policy has the same outcomes, to the tick, although the node that owns
// all shards is killed in the middle. If the machine stalled during the story, only the guarantees were judged,
// and the story is repeated.
//
// Verifies: G21, G22, G24
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
	w := newPolicyCluster(t, life)
	w.dial = func(context.Context) *clientv3.Client { return server.Dial().Client }
	w.etcd = server.Client()
	w.admin = store.New(w.etcd, kv.Direct(w.etcd), w.admin.Keys())

	recording, err := recorder.Start(life, w.etcd, w.admin.Keys())
	if err != nil {
		t.Fatal(err)
	}

	w.stalls = &stallMeter{}
	w.background.Go(func() { w.stalls.measure(life, w.etcd) })
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

// policyCluster is the cluster in which the policies are tested.
type policyCluster struct {
	*world
	start                      time.Time
	executor, owner, successor *node
	stalls                     *stallMeter // nil in virtual time
}

// stallMeter measures how long the machine, or etcd, has stalled. Ticks, runs and calls of the story are half a
// second apart, so the outcomes are exact only if everything takes less time than that.
type stallMeter struct {
	mu           sync.Mutex
	longestStall time.Duration
	start        time.Time // of the measurement in progress; zero: none
}

const (
	maxStall      = 200 * time.Millisecond
	probeInterval = 20 * time.Millisecond
)

func (s *stallMeter) measure(ctx context.Context, etcd *kv.Client) {
	for {
		s.setStart(time.Now())

		if !clock.Sleep(ctx, probeInterval) {
			break
		}
		if _, err := etcd.Put(ctx, "/stall", ""); err != nil && ctx.Err() != nil {
			break
		}

		s.longest()
	}

	s.setStart(time.Time{})
}

// setStart records when a measurement has begun; zero: none is in progress any more.
func (s *stallMeter) setStart(began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start = began
}

// longest returns the longest pause so far. A pause in progress counts, because a call may have failed during it.
func (s *stallMeter) longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()

	if !s.start.IsZero() {
		s.longestStall = max(s.longestStall, time.Since(s.start)-probeInterval)
	}

	return s.longestStall
}

// exact reports whether the story continued without a pause.
func (p *policyCluster) exact() bool {
	return p.stalls == nil || p.stalls.longest() < maxStall
}

// differs reports a wrong outcome, unless a pause explains it.
func (p *policyCluster) differs(format string, args ...any) {
	p.t.Helper()

	if p.exact() {
		p.t.Errorf(format, args...)
		return
	}

	p.t.Logf("after a pause of %s: %s", p.stalls.longest(), fmt.Sprintf(format, args...))
}

func newPolicyCluster(t *testing.T, life context.Context) *policyCluster {
	w := &policyCluster{world: newWorld(t, life, 1, Options{Shards: 8, Slots: 100, Plain: true})}
	w.executor, w.owner, w.successor = w.addNode(), w.addNode(), w.addNode()
	w.executor.roles, w.owner.roles, w.successor.roles = []string{task.RoleExecutor}, []string{task.RoleScheduler}, []string{task.RoleScheduler}
	return w
}

// at waits until that many seconds of the story have passed.
func (p *policyCluster) at(seconds float64) {
	p.sleep(time.Until(p.start.Add(time.Duration(seconds * float64(time.Second)))))
}

// play executes the story.
func (p *policyCluster) play() {
	p.executor.startDaemon()
	p.owner.startDaemon()
	c := p.ready()
	p.start = time.Now().Add(7 * time.Second).Truncate(time.Second)

	for _, s := range situations {
		p.must(func() error { _, err := c.Tasks.Apply(p.life, s.task(p.start), client.ApplyOptions{}); return err })
	}

	p.must(func() error { _, err := c.Tasks.Apply(p.life, p.chained(), client.ApplyOptions{}); return err })

	if late := time.Since(p.start); late > 0 {
		p.differs("the story should have begun %s ago", late)
	}

	p.at(2.9)
	p.must(func() error {
		return p.requestByPath(p.life, p.executor, http.MethodPut, freezePath(frozenNamespace), map[string]string{"reason": "frost"}, nil)
	})

	p.at(5)
	p.must(func() error {
		_, err := p.patch(c, "paused-until", map[string]any{"paused": true, "paused_until": task.At(p.start.Add(17 * time.Second)), "pause_reason": "again"})
		return err
	})

	p.at(ownerDies)
	p.owner.killDaemon(true)
	p.at(successorStarts)
	p.successor.startDaemon()
	p.at(successorReady)
	p.at(17)
	p.must(func() error {
		return p.requestByPath(p.life, p.executor, http.MethodDelete, freezePath(frozenNamespace), nil, nil)
	})
	p.at(19.2)
	p.must(func() error { _, err := c.Tasks.Resume(p.life, simNamespace, "pause-after", 0); return err })
	p.at(20.5)
	p.must(func() error {
		runs, err := c.Runs.ListByTask(p.life, simNamespace, "replace", client.RunListOptions{})
		for _, r := range runs {
			if err == nil && r.State.Active() {
				_, err = c.Runs.Cancel(p.life, simNamespace, "replace", r.ID)
			}
		}

		return err
	})

	p.at(storyEnds)

	if !p.waitUntil(2*time.Minute, p.isIdle) {
		p.t.Error("there are runs that do not end")
	}

	p.stopProcesses()
}

// chained returns a task whose ticks count from the ends of its runs.
func (p *policyCluster) chained() task.Spec {
	s := situation{name: "after-completion", runs: time.Second}.task(p.start)
	s.Schedule = task.Schedules{"@every 4s after completion"}
	s.Start, s.End = task.At(p.start.Add(time.Second)), task.At(p.start.Add(17500*time.Millisecond))
	return s
}

// ready waits for the first owner, and returns a client of the node that is not killed.
func (p *policyCluster) ready() *client.Client {
	var c *client.Client
	owned := p.waitUntil(time.Minute, func() bool {
		if c = p.clientOf(p.executor); c == nil {
			return false
		}
		st, err := c.Cluster.Status(p.life)
		return err == nil && st.ShardsOwned == st.Shards && st.NodesReady == 2
	})

	if !owned {
		p.abort(fmt.Errorf("the shards have no owner:\n%s", strings.Join(p.story, "\n")))
	}

	return c
}

// must makes a call that the story requires. After a pause of the machine it repeats a call that fails.
func (p *policyCluster) must(do func() error) {
	p.t.Helper()
	err := do()
	for range 20 {
		if err == nil || p.exact() {
			break
		}

		p.t.Logf("%s into the story: %v", time.Since(p.start), err)
		p.sleep(500 * time.Millisecond)
		err = do()
	}

	if err != nil {
		p.abort(fmt.Errorf("%s into the story: %w", time.Since(p.start), err))
	}
}

func (p *policyCluster) patch(c *client.Client, name string, fields map[string]any) (client.Task, error) {
	b, err := json.Marshal(fields)
	if err != nil {
		return client.Task{}, err
	}
	return c.Tasks.Patch(p.life, simNamespace, name, b, 0)
}

// judge compares the outcomes with the expected ones.
func (p *policyCluster) judge(events []check.Event) {
	t, keys := p.t, p.admin.Keys()
	r := check.Check(keys, events, check.Options{Until: p.start.Add((storyEnds - 1) * time.Second), Ended: true, Remembered: true})
	if !r.OK() {
		t.Errorf("%s", r.String())
	}

	for _, v := range check.CheckProbeLog(strings.NewReader(p.probes.log.String()), keys, events) {
		t.Error(v)
	}

	came := outcomesOf(keys, events)

	for _, s := range situations {
		for i, tick := range s.ticks {
			at := p.start.Add(time.Duration(tick * float64(time.Second)))
			if got := came[s.name][at.UnixMilli()]; got != s.want[i] {
				p.differs("%s, the tick at %gs: %q, want %q", s.name, tick, got, s.want[i])
			}
			delete(came[s.name], at.UnixMilli())
		}

		for at, what := range came[s.name] {
			p.differs("%s: a tick that there is not, at %s: %q", s.name, time.UnixMilli(at).Sub(p.start), what)
		}
	}

	p.judgeChain(events)

	if t.Failed() {
		path := t.TempDir()
		t.Logf("%s\n%s", path, strings.Join(p.story[max(0, len(p.story)-60):], "\n"))
	}
}

// judgeChain checks that each tick of a schedule after completion is 4 s after the end of the run before. After a pause of
// the machine, a run may end so late that its successor is due while there is no owner. Then the next owner moves the tick
// behind what it has decided. No tick is ever too early.
func (p *policyCluster) judgeChain(events []check.Event) {
	var runs []task.Run
	for _, e := range events {
		if k, ok := p.admin.Keys().ParseShard(e.Key); ok && k.Kind == record.KindEnded && k.Ref.Name == "after-completion" && !e.Deleted {
			r, err := record.DecodeEnded(k, e.Value)
			if err != nil {
				p.abort(err)
			}
			runs = append(runs, r)
		}
	}

	if len(runs) != 3 || !runs[0].ScheduledTime.Equal(p.start.Add(time.Second)) {
		p.differs("after completion there were %d runs, want 3: %+v", len(runs), runs)
	}

	for i := 1; i < len(runs); i++ {
		gap := runs[i].ScheduledTime.Sub(runs[i-1].EndedAt.Time)
		switch {
		case gap < 4*time.Second:
			p.t.Errorf("after completion: the tick comes %s after the end", gap)
		case gap > 4*time.Second:
			p.differs("after completion: the tick comes %s after the end", gap)
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
