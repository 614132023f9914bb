package executor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/guardian/guardiantest"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// fakeHTTP runs HTTP attempts without a network, by the contract of AttemptRunner. A target connects after connectTime and
// answers after the time in answers. The zero values answer at once.
type fakeHTTP struct {
	mu      sync.Mutex
	targets map[string]fakeTarget
	now     map[string]int // attempts in progress, by target
	most    map[string]int // the most of them at the same time
	tried   []string       // the runs whose attempts tried to connect, in order
	sent    []string       // the runs whose request was sent
	kills   []process.Kill // of requests that were sent
	late    []error        // what MayContinue said at the end of each request that was sent
}

// fakeTarget is how a target behaves.
type fakeTarget struct {
	down        bool // it refuses connections
	connectTime time.Duration
	answerTime  time.Duration
	retryAfter  time.Duration // it asks to wait
	unknown     bool          // with down: the attempts themselves may be the reason
}

// set changes a target.
func (f *fakeHTTP) set(name string, t fakeTarget) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.targets[name] = t
}

// enter counts an attempt, and returns how its target behaves now.
func (f *fakeHTTP) enter(name, run string) fakeTarget {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.tried = append(f.tried, run)
	f.now[name]++
	f.most[name] = max(f.most[name], f.now[name])

	return f.targets[name]
}

func (f *fakeHTTP) leave(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.now[name]--
}

// RunAttempt runs an attempt to its end.
func (f *fakeHTTP) RunAttempt(a process.Attempt, o *process.Orders) process.Result {
	name := strings.TrimPrefix(a.Action.HTTP.URL, "http://")
	t := f.enter(name, a.ID)
	defer f.leave(name)

	r := process.Result{State: task.Failed, Reason: task.ReasonUnsent, Message: "connection refused"}
	defer func() { r.EndedAt = time.Now() }()

	select {
	case <-o.CalledOff():
		return process.Result{NotStarted: true}
	case <-time.After(t.connectTime):
	}

	if t.down {
		r.Unsent, r.TargetUnknown = true, t.unknown
		return r
	}

	if err := a.MayStart(); err != nil {
		return process.Result{NotStarted: true, Message: err.Error()}
	}
	r.StartedAt = time.Now()
	a.OnStarted(r.StartedAt)

	f.mu.Lock()
	f.sent = append(f.sent, a.ID)
	f.mu.Unlock()

	select {
	case k := <-o.Killed():
		r.Reason, r.Message = task.ReasonUnanswered, "connection closed"
		r.SetCause(k.Cause, 0)
		f.mu.Lock()
		f.kills = append(f.kills, k)
		f.mu.Unlock()
	case <-time.After(t.answerTime):
		r.State, r.Reason, r.Message = task.Succeeded, "", ""
		if t.retryAfter > 0 {
			r.State, r.Reason, r.Unsent, r.RetryAfter = task.Failed, task.ReasonUnsent, true, t.retryAfter
		}
	}

	f.mu.Lock()
	f.late = append(f.late, a.MayContinue())
	f.mu.Unlock()

	return r
}

// seen returns a copy of what a fakeHTTP has listed.
func seen[T any](f *fakeHTTP, list *[]T) []T {
	f.mu.Lock()
	defer f.mu.Unlock()

	return slices.Clone(*list)
}

// maxAtOnce returns the most attempts that were in progress to a target at the same time.
func (f *fakeHTTP) mostAtOnce(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()

	return f.most[name]
}

// httpNode is a node with a fakeHTTP, in virtual time.
type httpNode struct {
	*node
	http *fakeHTTP
	skip time.Duration // the time for which the host was suspended
	mu   sync.Mutex
}

func newHTTPNode(t *testing.T, change ...func(*Config)) *httpNode {
	t.Helper()
	n := &httpNode{http: &fakeHTTP{targets: map[string]fakeTarget{}, now: map[string]int{}, most: map[string]int{}}}
	began := time.Now()

	n.node = newNode(t, newEtcd(t), append([]func(*Config){func(c *Config) {
		c.HTTP = func(*spool.Spool) (AttemptRunner, error) { return n.http, nil }
		c.Fake = func(killed <-chan struct{}, _ task.Assigned, _ int64) int { <-killed; return 0 }
		c.Boot = func() time.Duration {
			n.mu.Lock()
			defer n.mu.Unlock()

			return time.Since(began) + n.skip + time.Hour
		}
	}}, change...)...)

	return n
}

// suspend makes the clock that counts suspend go forward.
func (n *httpNode) suspend(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.skip += d
}

// inLoop calls f in the goroutine that owns the state.
func (n *httpNode) inLoop(f func(*state)) {
	done := make(chan struct{})
	n.callInLoop(func() { f(&n.state); close(done) })
	<-done
}

// slotsInUse returns the number of HTTP slots in use, as the loop knows it.
func (n *httpNode) slotsInUse() (used int) {
	n.inLoop(func(s *state) { used = s.targets.used })
	return used
}

// request assigns an attempt of a request to a target. Each is a little younger than the one before.
func (n *httpNode) request(run, target string, change ...func(*task.Assigned)) {
	n.t.Helper()
	n.assign(run, "", append([]func(*task.Assigned){func(a *task.Assigned) {
		a.Action = task.Action{HTTP: &task.HTTP{URL: "http://" + target}}
	}}, change...)...)
}

// perTarget returns a change that limits the requests to the target.
func perTarget(n int) func(*task.Assigned) {
	return func(a *task.Assigned) { a.Action.HTTP.Limit.PerTarget = n }
}

// after waits until everything has happened that happens within d.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// inVirtualTime runs a test of a node in virtual time. The node has joined.
func inVirtualTime(t *testing.T, test func(*testing.T, *httpNode), change ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newHTTPNode(t, change...)
		n.join()
		after(0)
		test(t, n)
	})
}

func TestHTTP_RunsWithoutASlotOfAProcess(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, n *httpNode) {
		n.assign("process", "")
		n.http.set("api", fakeTarget{answerTime: time.Second})
		for i := range 3 {
			n.request(fmt.Sprint("r", i), "api")
		}
		after(time.Second / 2)

		if n.Free() != 0 || n.Running() != 4 {
			t.Errorf("%d slots are free, and %d attempts run", n.Free(), n.Running())
		}
		if got := gathered(t, n, "carillon_attempts_running"); got["process"] != 1 || got["http"] != 3 {
			t.Errorf("running by kind: %v", got)
		}
		if got := gathered(t, n, "carillon_slots"); got["process"] != 1 || got["http"] != task.HTTPSlots {
			t.Errorf("slots by kind: %v", got)
		}

		after(time.Second)
		for i := range 3 {
			if r := n.ended(fmt.Sprint("r", i)); r.State != task.Succeeded || r.LatenessMS == nil || r.StartedAt.IsZero() {
				t.Errorf("got %+v", r)
			}
		}
		if got := value(n.metrics.ended.WithLabelValues("http", "succeeded")); got != 3 {
			t.Errorf("%v are counted", got)
		}
		n.inLoop(func(s *state) {
			if len(s.targets.targets) != 0 || s.targets.used != 0 {
				t.Errorf("%d targets are kept, and %d slots are in use", len(s.targets.targets), s.targets.used)
			}
		})
	}, func(c *Config) { c.Slots = 1 })
}

// gathered returns the values of a metric by its label kind or state.
func gathered(t *testing.T, n *httpNode, name string) map[string]float64 {
	t.Helper()
	families, err := n.cfg.Registerer.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}

	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}

	return got
}

func TestHTTP_IsUnsupportedWithoutARunner(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, n *httpNode) {
		n.request("r1", "api")
		after(time.Second)
		if r := n.ended("r1"); r.State != task.Failed || r.Reason != task.ReasonStart {
			t.Errorf("got %+v", r)
		}
	}, func(c *Config) { c.HTTP = nil })
}

func TestHTTP_WaitsForItsTargetOldestFirst(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, n *httpNode) {
		n.http.set("api", fakeTarget{answerTime: time.Second})
		minutes := func(m int) func(*task.Assigned) {
			return func(a *task.Assigned) { a.ScheduledTime = task.At(a.ScheduledTime.Add(time.Duration(m) * time.Minute)) }
		}

		n.request("first", "api", perTarget(1))
		after(0)
		for run, at := range map[string]int{"newest": 4, "oldest": 1, "cancelled": 2, "paused": 2, "late": 2, "middle": 3} {
			n.request(run, "api", perTarget(1), minutes(at))
		}
		n.change("late", func(a *task.Assigned) { a.StartBefore = task.At(time.Now().Add(time.Second / 4)) })
		after(0)
		n.change("cancelled", cancelled)
		n.change("paused", func(a *task.Assigned) { a.PauseRequested = true })
		after(time.Second / 2)

		if r := n.history("late"); r == nil || r.State != task.Missed {
			t.Errorf("one that waits for its target until its start deadline: %+v", r)
		}
		if r := n.history("cancelled"); r == nil || r.State != task.Cancelled {
			t.Errorf("one that is cancelled while it waits: %+v", r)
		}
		n.inLoop(func(s *state) {
			if waiting := s.targets.targets["http://api:80"].waiting; len(waiting) != 1 || len(waiting[0].entries) != 3 {
				t.Errorf("what does not wait any more is kept: %+v", waiting)
			}
		})

		after(4 * time.Second)
		if got, want := seen(n.http, &n.http.sent), []string{"first", "oldest", "middle", "newest"}; !slices.Equal(got, want) || n.http.mostAtOnce("api") != 1 {
			t.Errorf("sent %v, want %v; at most %d at the same time", got, want, n.http.mostAtOnce("api"))
		}

		n.change("paused", func(a *task.Assigned) { a.PauseRequested = false })
		after(2 * time.Second)
		if r := n.ended("paused"); r.State != task.Succeeded {
			t.Errorf("got %+v", r)
		}
	})
}

// Verifies: G54
func TestHTTP_SilentTargetsDoNotDelayAnother(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, n *httpNode) {
		for target := range 6 {
			name := fmt.Sprint("silent", target)
			n.http.set(name, fakeTarget{answerTime: time.Hour})
			for i := range 100 {
				n.request(fmt.Sprint(name, "-", i), name, func(a *task.Assigned) { a.ScheduledTime = task.At(a.ScheduledTime.Add(-time.Hour)) })
			}
		}
		after(time.Second)

		if used := n.slotsInUse(); used > task.HTTPSlots-task.HTTPSlots/reservedPart+6 {
			t.Errorf("%d slots are in use", used)
		}

		n.request("fast", "api")
		after(10 * time.Millisecond)
		if r := n.ended("fast"); r.State != task.Succeeded {
			t.Errorf("got %+v", r)
		}
	})
}

// Verifies: G54
func TestHTTP_ATargetThatIsDownUsesUpNothing(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, n *httpNode) {
		n.http.set("api", fakeTarget{down: true, connectTime: time.Second})
		for i := range openAfter {
			n.request(fmt.Sprint("before", i), "api")
		}
		after(2 * time.Second)

		for i := range 50 {
			n.request(fmt.Sprint("r", i), "api")
		}
		after(500 * time.Millisecond)
		if got := gathered(t, n, "carillon_http_targets"); got["half_open"] != 1 || len(seen(n.http, &n.http.tried)) != openAfter+1 {
			t.Errorf("targets: %v; %d attempts tried", got, len(seen(n.http, &n.http.tried)))
		}

		after(time.Second)
		for i := range 50 {
			run := fmt.Sprint("r", i)
			w := n.waits(run)
			if w == nil {
				t.Fatalf("%s does not wait: %+v", run, n.history(run))
			}
			if w.Attempt != 2 || w.Reason != task.ReasonTarget || w.NotBeforeBy != task.NotBeforeByTarget || len(w.Attempts) != 0 ||
				w.Unsent == nil || w.Unsent.Count != 1 || w.Unsent.Message != "connection refused" {
				t.Fatalf("%s: %+v", run, w)
			}
		}
		if tried := seen(n.http, &n.http.tried); len(tried) != openAfter+1 || len(seen(n.http, &n.http.sent)) != 0 {
			t.Errorf("%v tried, %v were sent", tried, seen(n.http, &n.http.sent))
		}
		if got := value(n.metrics.unsent); got != openAfter+50 {
			t.Errorf("%v are counted", got)
		}

		// It is back, but slow to connect. The probe proves that it is up as soon as it is sent.
		n.http.set("api", fakeTarget{connectTime: time.Second, answerTime: time.Hour})
		for i := range 10 {
			n.request(fmt.Sprint("after", i), "api")
		}
		after(1500 * time.Millisecond)
		if got := gathered(t, n, "carillon_http_targets"); got["closed"] != 1 || len(seen(n.http, &n.http.tried)) != openAfter+1+10 {
			t.Errorf("targets: %v; %d attempts tried", got, len(seen(n.http, &n.http.tried)))
		}
		after(time.Second)
		if got := seen(n.http, &n.http.sent); len(got) != 10 {
			t.Errorf("%d were sent", len(got))
		}
	})
}

func TestHTTP_WhatWaitsForAProbeCanBeCancelled(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, n *httpNode) {
		n.http.set("api", fakeTarget{down: true, connectTime: time.Second})
		for i := range openAfter {
			n.request(fmt.Sprint("before", i), "api")
		}
		after(2 * time.Second)

		n.request("probe", "api")
		after(0)
		n.request("waits", "api")
		after(500 * time.Millisecond)
		n.change("waits", cancelled)
		n.change("probe", cancelled)
		after(0)

		for _, run := range []string{"waits", "probe"} {
			if r := n.ended(run); r.State != task.Cancelled || !r.StartedAt.IsZero() {
				t.Errorf("got %+v", r)
			}
		}

		// A probe that was called off says nothing, and another attempt takes its place.
		n.http.set("api", fakeTarget{})
		n.request("next", "api")
		after(0)
		if r := n.ended("next"); r.State != task.Succeeded {
			t.Errorf("got %+v", r)
		}
	})
}

func TestHTTP_ATargetThatAsksToWaitIsNotDown(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, n *httpNode) {
		n.http.set("api", fakeTarget{retryAfter: time.Minute})
		for i := range openAfter + 1 {
			n.request(fmt.Sprint("r", i), "api")
			after(10 * time.Millisecond)
		}

		if got := gathered(t, n, "carillon_http_targets"); got["open"]+got["half_open"]+got["closed"] != 0 || len(seen(n.http, &n.http.sent)) != openAfter+1 {
			t.Errorf("targets: %v; %d were sent", got, len(seen(n.http, &n.http.sent)))
		}
		if w := n.waits("r0"); w == nil || w.NotBeforeBy != task.NotBeforeByTarget || time.Until(w.NotBefore.Time) < 59*time.Second || w.Unsent.Count != 1 {
			t.Errorf("got %+v", w)
		}
	})
}

// A task with a timeout of a millisecond must not make its target count as down for all other tasks.
func TestHTTP_AnAttemptThatMayBeTheReasonDoesNotOpenItsTarget(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, n *httpNode) {
		n.http.set("api", fakeTarget{down: true, unknown: true})
		for i := range openAfter + 1 {
			n.request(fmt.Sprint("r", i), "api")
			after(10 * time.Millisecond)
		}

		if got := gathered(t, n, "carillon_http_targets"); got["open"]+got["half_open"] != 0 || value(n.metrics.unsent) != openAfter+1 {
			t.Errorf("targets: %v; %v unsent", got, value(n.metrics.unsent))
		}
	})
}

func TestHTTP_AKillCancelsTheRequestAtOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, n *httpNode) {
		n.http.set("api", fakeTarget{answerTime: time.Hour})
		n.request("r1", "api") // its kill_grace is a minute
		after(time.Second)
		n.change("r1", cancelled)
		after(0)
		if r := n.ended("r1"); r.State != task.Cancelled || !r.CancelledBy.Is("someone") {
			t.Errorf("got %+v", r)
		}
		if want := []process.Kill{{Cause: process.CauseCancel}}; !slices.Equal(seen(n.http, &n.http.kills), want) {
			t.Errorf("it was killed by %+v", seen(n.http, &n.http.kills))
		}
	})
}

// While the node has no contact with etcd, requests end before others declare them lost, and send nothing any more.
//
// Verifies: G17
func TestHTTP_EndsWhenTheNodeIsSilent(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, n *httpNode) {
		n.http.set("api", fakeTarget{answerTime: time.Hour})
		n.http.set("slow", fakeTarget{connectTime: 100 * time.Second})
		n.request("sent", "api", lostAfter(time.Minute))
		n.request("connects", "slow", lostAfter(time.Minute))
		after(time.Second)

		n.renewed.Store(new(time.Now()))
		after(49 * time.Second)
		if n.history("sent") != nil {
			t.Error("it ended too early")
		}

		after(2 * time.Second)
		if r := n.ended("sent"); r.State != task.Lost || r.Reason != task.ReasonNodeLost {
			t.Errorf("got %+v", r)
		}
		if len(seen(n.http, &n.http.late)) != 1 || !errors.Is(seen(n.http, &n.http.late)[0], process.ErrTooLate) {
			t.Errorf("it might have continued: %v", seen(n.http, &n.http.late))
		}

		// It was not sent, so it stays in the inbox, where its owner or a new session decides.
		if a, _ := n.inbox("connects"); a == nil || n.Running() != 0 {
			t.Errorf("got %+v; %d run", a, n.Running())
		}
	})
}

// After a suspend, an attempt may send nothing even before the loop has noticed.
//
// Verifies: G17
func TestHTTP_SendsNothingAfterASuspend(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, n *httpNode) {
		n.http.set("api", fakeTarget{answerTime: 10 * time.Millisecond})
		n.http.set("slow", fakeTarget{connectTime: 10 * time.Millisecond})
		n.renewed.Store(new(time.Now()))
		after(time.Second) // the loop has just looked
		n.request("sent", "api")
		n.request("connects", "slow")
		n.request("waits", "api", perTarget(1))
		after(time.Millisecond)
		n.suspend(time.Hour)
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()

		if len(seen(n.http, &n.http.late)) != 1 || !errors.Is(seen(n.http, &n.http.late)[0], process.ErrTooLate) {
			t.Errorf("it might have continued: %v", seen(n.http, &n.http.late))
		}
		if got := seen(n.http, &n.http.sent); !slices.Equal(got, []string{"sent"}) {
			t.Errorf("sent: %v", got)
		}
		if used := n.slotsInUse(); used != 0 {
			t.Errorf("%d slots are in use", used)
		}
	})
}

// A request that was adopted under a new session may continue as long as that session is renewed.
func TestHTTP_IsAdopted(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, n *httpNode) {
		n.http.set("api", fakeTarget{answerTime: 3 * time.Hour})
		n.request("r1", "api", lostAfter(time.Minute))
		after(time.Second)
		n.join()
		after(2 * time.Hour)
		if n.history("r1") != nil {
			t.Fatalf("it ended: %+v", n.history("r1"))
		}

		after(2 * time.Hour)
		if r := n.ended("r1"); r.State != task.Succeeded || seen(n.http, &n.http.late)[0] != nil {
			t.Errorf("got %+v, %v", r, seen(n.http, &n.http.late))
		}
	})
}

// A freeze does not wait for targets that do not answer.
func TestHTTP_AFreezeCallsOffWhatHasNotBeenSent(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, n *httpNode) {
		n.http.set("silent", fakeTarget{connectTime: time.Minute})
		n.http.set("api", fakeTarget{answerTime: time.Minute})
		n.request("connects", "silent")
		n.request("sent", "api")
		after(time.Second)

		rev := n.freeze("default")
		after(time.Second)
		if n.Froze() != rev || n.Running() != 1 {
			t.Errorf("obeys the record of revision %d, want %d; %d run", n.Froze(), rev, n.Running())
		}
		if a, _ := n.inbox("connects"); a == nil || n.history("connects") != nil {
			t.Error("it has not stayed in the inbox")
		}

		after(time.Hour)
		if r := n.ended("sent"); r.State != task.Succeeded {
			t.Errorf("got %+v", r)
		}

		n.freeze()
		after(2 * time.Minute)
		if r := n.ended("connects"); r.State != task.Succeeded {
			t.Errorf("got %+v", r)
		}
	})
}

func TestHTTP_DrainHandsBackWhatWaitsAndEndsWhatRuns(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, n *httpNode) {
		n.http.set("api", fakeTarget{answerTime: time.Hour})
		n.request("runs", "api", perTarget(1))
		after(time.Second)
		n.request("waits", "api", perTarget(1))
		after(time.Second)

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		if err := n.Drain(ctx); err != nil {
			t.Error(err)
		}

		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("the drain took %s", took)
		}
		if r := n.ended("runs"); r.Reason != task.ReasonShutdown {
			t.Errorf("got %+v", r)
		}
		if w := n.waits("waits"); w == nil || w.Attempt != 1 {
			t.Errorf("got %+v", w)
		}
	})
}

// Whatever happens to the node and to its targets, each attempt is sent at most once, and nothing is left in the end.
func TestHTTP_RandomEvents(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, n *httpNode) { playRandomEvents(t, n, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

// playRandomEvents plays a few minutes of events, ends all faults, and judges what is left.
func playRandomEvents(t *testing.T, n *httpNode, rng *rand.Rand) {
	targets := []string{"a", "b", "c"}
	var runs []string
	some := func() string { return runs[rng.IntN(len(runs))] }
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d) + 1)) }
	changeSome := func(f func(*task.Assigned)) {
		if len(runs) > 0 {
			n.changeIfThere(some(), f)
		}
	}

	for range 300 {
		switch rng.IntN(12) {
		case 0:
			n.http.set(targets[rng.IntN(3)], fakeTarget{down: true, connectTime: upTo(2 * time.Second)})
		case 1:
			n.http.set(targets[rng.IntN(3)], fakeTarget{connectTime: upTo(time.Second), answerTime: upTo(10 * time.Second)})
		case 2:
			n.http.set(targets[rng.IntN(3)], fakeTarget{retryAfter: time.Second})
		case 3:
			changeSome(cancelled)
		case 4:
			changeSome(func(a *task.Assigned) { a.PauseRequested = !a.PauseRequested })
		case 5:
			n.freeze("default")
		case 6:
			n.freeze()
		case 7:
			n.join()
		default:
			run := fmt.Sprint("r", len(runs))
			runs = append(runs, run)
			n.request(run, targets[rng.IntN(3)], perTarget(1+rng.IntN(4)))
		}
		after(upTo(time.Second))
	}

	n.freeze()
	for _, target := range targets {
		n.http.set(target, fakeTarget{})
	}
	for _, run := range runs {
		n.changeIfThere(run, func(a *task.Assigned) { a.PauseRequested = false })
	}
	after(time.Minute)

	n.inLoop(func(s *state) {
		if left := len(s.all); left != 0 || s.targets.used != 0 || n.Running() != 0 {
			t.Errorf("%d attempts are left, %d run, %d slots are in use", left, n.Running(), s.targets.used)
		}
		for name, target := range s.targets.targets {
			if len(target.waiting) != 0 || target.unsent == 0 {
				t.Errorf("target %s is kept: %+v", name, target)
			}
		}
	})

	sent := seen(n.http, &n.http.sent)
	slices.Sort(sent)
	if once := slices.Compact(slices.Clone(sent)); len(once) != len(sent) {
		t.Errorf("%d requests of %d attempts were sent", len(sent), len(once))
	}
	for _, run := range runs {
		if n.history(run) == nil && n.waits(run) == nil {
			t.Errorf("%s has no outcome", run)
		}
	}
}

// changeIfThere is change for a run that may be gone.
func (n *node) changeIfThere(run string, f func(*task.Assigned)) {
	n.t.Helper()

	for {
		a, mod := n.inbox(run)
		if a == nil {
			return
		}

		if f(a); n.putIf(n.keys.Run("n1", ref, run), mod, *a) {
			return
		}
	}
}

// The guardian knows of requests before the first of them is sent, and until the last of them has ended.
func TestHTTP_WithGuardian(t *testing.T) {
	g := guardian.NewClient(guardian.Config{})
	n := newHTTPNode(t, func(c *Config) { c.Guardian = g })
	n.join()

	n.request("unguarded", "api")
	n.sees("unguarded", "runs", func(a *attempt) bool { return a.phase == phaseRunning })
	n.change("unguarded", cancelled)
	if r := n.ended("unguarded"); r.State != task.Cancelled || len(seen(n.http, &n.http.tried)) != 0 {
		t.Errorf("got %+v; %v tried", r, seen(n.http, &n.http.tried))
	}

	n.http.set("api", fakeTarget{answerTime: time.Hour})
	n.request("r1", "api", lostAfter(time.Minute))
	n.request("r2", "api", lostAfter(time.Minute))
	ear := guardiantest.Listen(t, g)
	remote := func(session int, silence time.Duration) {
		t.Helper()
		ear.Hear("of HTTP attempts", func(x guardian.Message) bool {
			return x.Remote != nil && *x.Remote == guardian.Remote{Session: session, Silence: silence}
		})
	}
	remote(1, 56*time.Second)
	executortest.Eventually(t, "they are sent", func() bool { return len(seen(n.http, &n.http.sent)) == 2 })

	n.join()
	remote(2, 56*time.Second)
	remote(1, 0)

	n.change("r1", cancelled)
	n.change("r2", cancelled)
	remote(2, 0)
	n.ended("r1")
	n.ended("r2")
}
