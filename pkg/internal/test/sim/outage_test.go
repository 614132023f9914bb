package sim

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/internal/test/recorder"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestOutage_OfADay(t *testing.T) {
	racetest.SkipIfShort(t)

	tasks, isShort := 300, testing.Short()
	if isShort {
		tasks = 100
	}

	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(simulationStart))
		life, end := context.WithCancel(context.WithoutCancel(t.Context()))
		w := newOutage(t, life, tasks)
		w.judgesAlerts = !isShort
		w.play(func() { w.sleep(24 * time.Hour) })
		end()
		w.background.Wait()
		w.etcd.Close()
		w.store.Close()
		w.judge(checkEvents(w.store.Events()))
	})
}

// On a real etcd the day passes by the nodes' clocks, which are a day behind at first. It takes about four minutes,
// so it runs only with CARILLON_OUTAGE=etcd, as in make outage.
func TestOutage_OfADayOnEtcd(t *testing.T) {
	if os.Getenv("CARILLON_OUTAGE") != "etcd" {
		t.Logf("make outage lives through it")
		return
	}

	server := kvtest.StartServer(t)
	life, end := context.WithCancel(context.WithoutCancel(t.Context()))
	w := newOutage(t, life, 300)
	w.judgesAlerts = true
	w.dial = func(context.Context) *clientv3.Client { return server.Dial().Client }
	w.etcd = server.Client()
	w.admin = store.New(w.etcd, kv.Direct(w.etcd), w.admin.Keys())

	recording, err := recorder.Start(life, w.etcd, w.admin.Keys())
	if err != nil {
		t.Fatal(err)
	}

	w.setClocks(-24 * time.Hour)
	w.play(func() { w.setClocks(0) })
	ctx, cancel := context.WithTimeout(life, time.Minute)
	defer cancel()

	events, err := recording.Stop(ctx)
	if err != nil {
		t.Fatal(err)
	}

	end()
	w.background.Wait()
	w.judge(events)
}

// outage is a cluster that is down for a day. When it is back, each policy for missed ticks must have exactly the
// required result, at the configured rate, while other ticks are on time. make outage tests this with 10,000 tasks,
// and also on a real etcd.
type outage struct {
	*world
	tasks, rate   int
	behind        time.Duration // of the nodes' clocks
	stopped, back time.Time     // by the nodes' clocks
	judgesAlerts  bool          // waits until all expectations of tasks are judged, which takes long
}

// kinds are policies for missed ticks, with what must result for the ticks of a day: how many of the latest ticks
// run. The window is the default of an hour, except in the last one.
var kinds = []struct {
	name   string
	shape  func(*task.Spec)
	run    int64
	window int64 // in minutes
}{
	{"latest", func(s *task.Spec) { s.Missed.Policy = task.MissedLatest }, 1, 60},
	{"skip", func(s *task.Spec) { s.Missed.Policy = task.MissedSkip }, 0, 60},
	{"all", func(s *task.Spec) { s.Missed.Policy, s.Missed.Limit = task.MissedAll, 3 }, 3, 60},
	{"window", func(s *task.Spec) { s.Missed.Policy, s.Missed.Window = task.MissedAll, task.Duration(3*time.Minute) }, 3, 3},
	{"queue", func(s *task.Spec) { s.Missed.Policy, s.Overlap = task.MissedLatest, task.OverlapQueue }, 1, 60},
}

// newOutage returns a cluster with the given number of tasks, or with CARILLON_OUTAGE_TASKS.
func newOutage(t *testing.T, life context.Context, tasks int) *outage {
	n, _ := strconv.Atoi(os.Getenv("CARILLON_OUTAGE_TASKS"))
	w := &outage{world: newWorld(t, life, 1, Options{Shards: 16, Slots: 1000, Plain: true}), tasks: cmp.Or(n, tasks)}
	w.rate = max(20, w.tasks/100)

	for range 3 {
		w.addNode()
	}

	return w
}

func (o *outage) setClocks(skew time.Duration) {
	o.behind = skew
	for _, n := range o.nodes {
		n.skew.Store(int64(skew))
	}
}

// now returns the time by the nodes' clocks.
func (o *outage) now() time.Time { return time.Now().Add(o.behind) }

// second waits for a second of a minute by the nodes' clocks.
func (o *outage) second(of int) {
	now := o.now()
	next := now.Truncate(time.Minute).Add(time.Duration(of) * time.Second)
	if !next.After(now) {
		next = next.Add(time.Minute)
	}

	o.sleep(next.Sub(now))
}

func (o *outage) play(day func()) {
	for _, name := range o.names {
		o.nodes[name].startDaemon()
	}

	var c *client.Client
	o.wait(30*time.Second, "the shards have no owner", func() bool {
		if c = o.clientOf(o.nodes[o.names[0]]); c == nil {
			return false
		}
		st, err := c.Cluster.Status(o.life)
		return err == nil && st.ShardsOwned == st.Shards
	})

	if err := o.requestByPath(o.life, o.nodes[o.names[0]], http.MethodPatch, "/v1/cluster", map[string]int{"catch_up_rate": o.rate}, nil); err != nil {
		o.abort(err)
	}

	for r, err := range c.Tasks.ApplyAll(o.life, o.specs(), client.BatchOptions{}) {
		if err == nil && r.Error != nil {
			err = fmt.Errorf("%+v", r.Error)
		}

		if err != nil {
			o.abort(err)
		}
	}

	o.second(30) // each task has had at least one tick
	o.second(30)

	for _, name := range o.names {
		o.nodes[name].drainDaemon()
	}

	o.wait(5*time.Minute, "nodes do not drain", func() bool {
		return !slices.ContainsFunc(slices.Collect(maps.Values(o.nodes)), func(n *node) bool { return !isClosed(n.former) })
	})

	o.stopped = o.now()
	day()
	o.second(20)

	o.back = o.now()
	for _, name := range o.names {
		o.nodes[name].startDaemon()
	}

	var owed int64
	for i := range o.tasks {
		owed += kinds[i%len(kinds)].run
	}

	o.sleep(time.Duration(owed/int64(o.rate)) * time.Second)
	o.second(30)
	o.second(30)
	if o.judgesAlerts {
		o.sleep(o.back.Add(alert.CatchUpTime + 2*time.Minute).Sub(o.now())) // until all that passed in the outage is judged
		o.second(30)
	}
	o.wait(5*time.Minute, "there are runs that wait", o.isIdle)
	o.stopProcesses()
}

func (o *outage) wait(most time.Duration, what string, holds func() bool) {
	if !o.waitUntil(most, holds) {
		o.abort(fmt.Errorf("%s", what))
	}
}

func (o *outage) specs() iter.Seq[task.Spec] {
	return func(yield func(task.Spec) bool) {
		for i := range o.tasks {
			s := task.Defaults()
			k := kinds[i%len(kinds)]
			s.Name, s.Namespace, s.Schedule = fmt.Sprintf("%s-%05d", k.name, i), simNamespace, task.Schedules{"* * * * *"}
			s.Action.Noop, s.History.Keep = &task.Noop{}, 100
			s.Alerts = expectations()
			if k.shape(&s); !yield(s) {
				return
			}
		}

		s := task.Defaults()
		s.Name, s.Namespace, s.Schedule, s.Alerts = brokenTask, simNamespace, task.Schedules{"* * * * *"}, expectations()
		s.Action.Process = &task.Process{Command: []string{"sim", "10ms", "1"}}
		yield(s)
	}
}

// brokenTask is a task whose runs fail.
const brokenTask = "broken"

// expectations returns what is expected of each task. All of that is not met when the outage is over.
func expectations() *task.Alerts {
	return &task.Alerts{Failures: new(0), SuccessWithin: task.Duration(6 * time.Hour), SuccessBy: "*/5 * * * *"}
}

// tally counts the outcomes of one task's ticks that were due during the outage.
type tally struct {
	run    int64
	missed map[string]int64
}

func (o *outage) judge(events []check.Event) {
	t, keys := o.t, o.admin.Keys()
	r := check.Check(keys, events, check.Options{Until: o.back.Add(time.Minute), Ended: true, Remembered: true})
	if !r.OK() {
		t.Errorf("%s", r.String())
	}

	came := map[string]*tally{}
	var caughtUp []int64
	var latest time.Duration
	for _, e := range events {
		k, inShard := keys.ParseShard(e.Key)
		a, inInbox := keys.ParseRun(e.Key)
		switch {
		case e.Deleted:
		case inInbox && e.CreateRevision == e.ModRevision:
			one, err := record.DecodeAssigned(a, e.CreateRevision, e.Value)
			if err != nil {
				t.Fatal(err)
			}

			switch {
			case one.Trigger == task.TriggerCatchUp:
				caughtUp = append(caughtUp, one.DispatchedAt.UnixMilli())
				o.of(came, a.Ref.Name).run++
			case one.ScheduledTime.After(o.back):
				latest = max(latest, one.DispatchedAt.Sub(one.ScheduledTime.Time))
			}
		case inShard && k.Kind == record.KindEnded:
			one, err := record.DecodeEnded(k, e.Value)
			if err != nil {
				t.Fatal(err)
			}

			if one.State == task.Missed {
				o.of(came, k.Ref.Name).missed[one.Reason] += one.Ticks()
			}
		}
	}

	ticks := int64(o.back.Truncate(time.Minute).Sub(o.stopped.Truncate(time.Minute)) / time.Minute)

	for i := range o.tasks {
		k := kinds[i%len(kinds)]
		got := o.of(came, fmt.Sprintf("%s-%05d", k.name, i))
		want := map[string]int64{task.ReasonWindow: ticks - k.window, task.ReasonNoOwner: k.window - k.run}
		maps.DeleteFunc(want, func(_ string, n int64) bool { return n == 0 })

		if got.run != k.run || !maps.Equal(got.missed, want) {
			t.Errorf("of the %d ticks of a task with policy %s %d ran, and missed were %v; want %d and %v", ticks, k.name, got.run, got.missed, k.run, want)
		}
	}

	o.judgePace(caughtUp)
	if o.judgesAlerts {
		o.judgeAlerts(events)
	}

	if ticksLate := time.Second; latest > ticksLate {
		t.Errorf("while it caught up, a tick was %s late", latest)
	}

	t.Logf("%d tasks, %d ticks each missed; %d runs caught up with, %d a second; ticks meanwhile at most %s late; by the oracle %d ticks, %d without an outcome",
		o.tasks, ticks, len(caughtUp), o.rate, latest, r.Summary.Ticks, r.Summary.Undecided)
}

func (o *outage) of(came map[string]*tally, name string) *tally {
	if came[name] == nil {
		came[name] = &tally{missed: map[string]int64{}}
	}
	return came[name]
}

// judgeAlerts checks that what passed during the outage is judged when the catch-up is over: only the broken task gets alerts. Its next
// deadline comes earlier.
func (o *outage) judgeAlerts(events []check.Event) {
	opened := 0
	for _, e := range events {
		if e.Deleted || e.CreateRevision != e.ModRevision {
			continue
		}

		a, _, ok, err := record.DecodeAlert(o.admin.Keys(), &mvccpb.KeyValue{Key: []byte(e.Key), Value: e.Value})
		switch {
		case !ok || a.Kind == task.AlertCluster:
		case err != nil:
			o.t.Fatal(err)
		case a.Task != brokenTask:
			o.t.Errorf("an alert %s of %s opened %s after the outage", a.Kind, a.Task, a.OpenedAt.Sub(o.back))
		case a.Kind == task.AlertSuccessWithin && a.OpenedAt.Before(o.back.Add(alert.CatchUpTime)):
			o.t.Errorf("the alert %s opened %s after the outage, which is too early", a.Kind, a.OpenedAt.Sub(o.back))
		default:
			opened++
		}
	}

	if opened != 2 {
		o.t.Errorf("the task whose runs fail has %d alerts, not success_within and success_by", opened)
	}
}

// judgePace checks that in no period more runs started than the rate allows, including a burst of one second's
// worth, and that all of them took no longer than necessary.
func (o *outage) judgePace(at []int64) {
	slices.Sort(at)
	rate, burst := float64(o.rate)/1000, float64(o.rate+len(o.names))

	for i := range at {
		for _, span := range []int{o.rate / 2, o.rate * 2, o.rate * 10, len(at)} {
			if j := min(i+span, len(at)-1); float64(j-i+1) > rate*float64(at[j]-at[i])+burst+1 {
				o.t.Errorf("%d runs were started within %d ms of catching up: at most %d a second should be; in the seconds since %s: %v",
					j-i+1, at[j]-at[i], o.rate, o.back, perSecond(at))
				return
			}
		}
	}

	if n := len(at); n > 0 {
		if took := time.Duration(at[n-1]-at[0]) * time.Millisecond; took.Seconds() > 1.25*float64(n)/float64(o.rate)+2 {
			o.t.Errorf("catching up with %d runs took %s, at %d a second", n, took, o.rate)
		}
	}
}

// perSecond returns how many times fall into each second, beginning with the first one.
func perSecond(at []int64) []int {
	all := make([]int, (at[len(at)-1]-at[0])/1000+1)
	for _, ms := range at {
		all[(ms-at[0])/1000]++
	}
	return all
}
