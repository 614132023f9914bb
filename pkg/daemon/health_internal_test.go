package daemon

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestLosses_WaitLongerEachTime(t *testing.T) {
	var l rejoinBackoff
	longest := func(lasted time.Duration) (most time.Duration) {
		for range 200 { // without a change of the counter
			again := l
			most = max(most, again.nextDelay(lasted))
		}
		l.nextDelay(lasted)
		return most
	}
	for i, limit := range []time.Duration{1, 2, 4, 8, 16, 16} {
		limit *= time.Second
		if got := longest(time.Second); got > limit || got < limit/2 {
			t.Errorf("loss %d: up to %s, want %s", i+1, got, limit)
		}
	}
	if got := longest(time.Hour); got > firstRejoinDelay {
		t.Errorf("after an hour: up to %s", got)
	}
}

// fakeBeats is a component whose beats the test controls.
type fakeBeats int64

func (b *fakeBeats) Beats() int64 { return int64(*b) }

func TestWatchdog_EndsTheSessionOfANodeWhosePartStandsStill(t *testing.T) {
	w := newWatchdog(zap.NewNop())
	var keeper, engine fakeBeats
	w.watchPart("keeper", &keeper)
	w.watchPart("engine", &engine)
	for range 2 * watchdogLimit {
		keeper++ // the engine has not begun, because it waits for etcd
		w.checkParts()
	}
	if err := w.checkAlive(); err != nil {
		t.Fatal(err)
	}
	engine++
	for range watchdogLimit {
		keeper++
		w.checkParts()
	}
	if err := w.checkAlive(); err != nil {
		t.Errorf("too early: %v", err)
	}
	keeper++
	w.checkParts()
	if err := w.checkAlive(); err == nil {
		t.Error("the engine has stalled, and the health check passes")
	}
	engine++
	w.checkParts()
	if err := w.checkAlive(); err != nil {
		t.Errorf("after progress: %v", err)
	}
}

func TestWatchdog_ThatDoesNotLookIsNotAlive(t *testing.T) {
	n := &nodeHealth{watchdog: newWatchdog(zap.NewNop())}
	n.watchdog.watchPart("keeper", new(fakeBeats))
	n.watchdog.checkParts()
	if err := n.CheckAlive(); err != nil {
		t.Errorf("it has looked: %v", err)
	}
	if n.CheckAlive() == nil {
		t.Error("it has not looked since")
	}
}

// stalling is a node whose shards behave as the test requests.
type stalling struct {
	*stallMonitor
	shards    []int
	all       error
	restarted []int
}

func newStalling() *stalling {
	s := &stalling{}
	s.stallMonitor = &stallMonitor{
		workers: s, env: Environment{}.withDefaults(),
		eligibility: newEligibility(prometheus.NewRegistry(), zap.NewNop(), func() {}), log: zap.NewNop(),
	}
	return s
}

func (s *stalling) Stalled(time.Time, time.Duration) ([]int, error) { return s.shards, s.all }

func (s *stalling) Restart(shard int) { s.restarted = append(s.restarted, shard) }

func TestStall_AWorkerThatStandsStillBeginsAnew(t *testing.T) {
	s, now := newStalling(), time.Now()
	s.shards = []int{3}
	s.checkStalls(now, time.Minute)
	if len(s.restarted) != 0 {
		t.Error("at the first look: it may be the end of a pause")
	}
	s.checkStalls(now, time.Minute)
	if len(s.restarted) != 1 || s.eligibility.firstError() != nil {
		t.Errorf("restarted %v, %v", s.restarted, s.eligibility.firstError())
	}
}

func TestStall_ANodeThatDecidesNothingGivesItsShardsUpForAWhile(t *testing.T) {
	s, now := newStalling(), time.Now()
	s.all = errors.New("nothing goes on")
	stall := func() {
		t.Helper()
		s.checkStalls(now, time.Minute)
		s.checkStalls(now, time.Minute)
		if s.eligibility.gravestReason() != task.IneligibleStalled {
			t.Fatalf("it is %q", s.eligibility.gravestReason())
		}
	}
	stall()
	now = now.Add(stallFirst - time.Second)
	s.checkStalls(now, time.Minute)
	if s.eligibility.firstError() == nil {
		t.Error("it is back too early")
	}
	s.all, now = nil, now.Add(time.Second)
	s.checkStalls(now, time.Minute)
	if err := s.eligibility.firstError(); err != nil {
		t.Errorf("it is not back: %v", err)
	}
	s.all = errors.New("again")
	stall()
	now = now.Add(2*stallFirst - time.Second)
	s.checkStalls(now, time.Minute)
	if s.eligibility.firstError() == nil {
		t.Error("the second rest is no longer than the first")
	}
}

func TestStall_IsNotThatEtcdIsAway(t *testing.T) {
	s, now := newStalling(), time.Now()
	s.shards, s.all = []int{1}, errors.New("nothing goes on")
	for range 10 {
		s.checkStalls(now, stallAge/2)
	}
	if s.eligibility.firstError() != nil || len(s.restarted) > 0 {
		t.Errorf("restarted %v, %v", s.restarted, s.eligibility.firstError())
	}
}

// Of several reasons the gravest is announced, and each is withdrawn separately.
func TestFitness_TellsTheGravestReason(t *testing.T) {
	changes := 0
	var mu sync.Mutex
	f := newEligibility(prometheus.NewRegistry(), zap.NewNop(), func() { mu.Lock(); changes++; mu.Unlock() })
	why := errors.New("why")
	f.setReason(task.IneligibleStalled, why)
	if f.gravestReason() != task.IneligibleStalled || f.ineligibleErr() != nil || f.firstError() == nil {
		t.Errorf("stalled: %q, forbids %v", f.gravestReason(), f.ineligibleErr())
	}
	f.setReason(task.IneligibleClock, why)
	f.setReason(task.IneligibleRestored, why)
	f.setReason(task.IneligibleRestored, why)
	if f.gravestReason() != task.IneligibleRestored || !errors.Is(f.ineligibleErr(), errIneligible) || !errors.Is(f.firstError(), why) {
		t.Errorf("all: %q, %v", f.gravestReason(), f.firstError())
	}
	f.setReason(task.IneligibleRestored, nil)
	f.setReason(task.IneligibleStalled, nil)
	if f.gravestReason() != task.IneligibleClock || f.ineligibleErr() == nil {
		t.Errorf("clock: %q", f.gravestReason())
	}
	f.setReason(task.IneligibleClock, nil)
	if f.firstError() != nil || changes != 6 {
		t.Errorf("%v, %d changes", f.firstError(), changes)
	}
}
