package alert

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// post is one receiver whose messages a leader sends, at a time that the test moves.
type post struct {
	*testing.T
	in     Input
	now    time.Time
	alerts map[string]*Addressed
	log    []string // what each message told, with the time since the start
	times  []time.Time
}

func newPost(t *testing.T) *post {
	return &post{T: t, now: walkStart, alerts: map[string]*Addressed{}, in: Input{
		Limits: DefaultLimits(), Receiver: Receiver{UID: "r", For: 10 * time.Second, Repeat: 24 * time.Hour},
	}}
}

// open opens alerts, or opens them again.
func (p *post) open(names ...string) {
	for _, name := range names {
		a := p.alerts[name]
		p.in.Revision++
		if a == nil {
			a = &Addressed{Key: KeyOf("c", &task.Alert{Task: name}), Alert: &task.Alert{Task: name, ID: p.in.Revision}}
			p.alerts[name] = a
		} else {
			a.Alert.Opened = append(a.Alert.Opened, a.Alert.OpenedAt)
			a.Alert.Opened = a.Alert.Opened[max(0, len(a.Alert.Opened)-2):]
		}
		a.Alert.OpenedAt, a.Alert.Closed, a.Alert.Acknowledged = task.At(p.now), nil, nil
	}
}

func (p *post) close(names ...string) {
	for _, name := range names {
		p.in.Revision++
		p.alerts[name].Alert.Closed = &task.AlertClose{At: task.At(p.now), Why: task.AlertSucceeded}
	}
}

// pass lets the leader look once.
func (p *post) pass() Decision {
	p.in.Now, p.in.Alerts = p.now, nil
	names := map[uint64]string{}
	for name, a := range p.alerts {
		names[a.Key] = name
		p.in.Alerts = append(p.in.Alerts, *a)
	}

	d := Diff(&p.in)
	p.in.Ended = nil
	if !d.Write {
		return d
	}

	p.in.Revision++
	p.in.Sent, p.in.Sent.Mod = d.Sent, p.in.Revision
	if !d.Message {
		return d
	}

	p.in.Sent.Sending.Runs = make([]string, d.Runs)
	var words []string
	for what, keys := range map[string][]uint64{"+": d.Opened, "-": d.Closed, "=": d.Repeated} {
		for _, key := range keys {
			name := names[key]
			if name == "" {
				name = "?"
			}
			words = append(words, what+name)
		}
	}
	slices.Sort(words)
	if p.in.Sent.Sending.Plain {
		words = append(words, "plain")
	}
	p.times = append(p.times, p.now)
	p.log = append(p.log, fmt.Sprintf("%s %s", p.now.Sub(walkStart), strings.Join(words, " ")))

	return d
}

// end ends the runs of the message that is outstanding.
func (p *post) end(ok bool) {
	if m := p.in.Sent.Sending; m != nil {
		p.in.Ended = slices.Repeat([]bool{ok}, len(m.Runs))
	}
}

// wait passes time. The leader looks every 5 seconds, and each message ends at once as ok says.
func (p *post) wait(d time.Duration, ok bool) {
	for until := p.now.Add(d); p.now.Before(until); {
		p.now = p.now.Add(5 * time.Second)
		p.pass()
		p.end(ok)
	}
}

func (p *post) expect(want ...string) {
	p.Helper()
	if !slices.Equal(p.log, want) {
		p.Errorf("messages:\n%s\nwant:\n%s", strings.Join(p.log, "\n"), strings.Join(want, "\n"))
	}
	p.log = nil
}

func TestDiff_KeepsAPace(t *testing.T) {
	p := newPost(t)
	for i := range 16 {
		p.open(fmt.Sprintf("t%02d", i))
		p.wait(time.Minute, true)
	}
	p.expect("10s +t00", "1m10s +t01", "6m10s +t02 +t03 +t04 +t05 +t06", "11m10s +t07 +t08 +t09 +t10 +t11")

	// After a quiet time, the next message is the first one again.
	p.wait(30*time.Minute, true)
	p.expect("16m10s +t12 +t13 +t14 +t15")
	p.open("late")
	p.wait(time.Minute, true)
	p.expect("46m10s +late")
}

func TestDiff_FollowsAFailureWithAPlainMessage(t *testing.T) {
	p := newPost(t)
	p.open("a")
	p.wait(time.Hour, false)
	p.expect("10s +a", "1m10s +a plain", "3m10s +a plain", "8m10s +a plain", "23m10s +a plain", "38m10s +a plain", "53m10s +a plain")

	if s := p.in.Sent; s.FailedInARow != 7 || !s.FailingSince.Equal(walkStart.Add(10*time.Second)) || len(s.Delivered) != 0 || len(s.Uncertain) != 1 {
		t.Errorf("after seven failures: %+v", s)
	}

	// It closes before anything has arrived. Nobody knows that, so the closing is told.
	p.close("a")
	p.wait(30*time.Minute, true)
	p.expect("1h8m10s -a plain")
	if s := p.in.Sent; s.FailedInARow != 0 || !s.FailingSince.IsZero() || len(s.Uncertain) != 0 || s.LastDelivered.IsZero() {
		t.Errorf("after a success: %+v", s)
	}

	p.open("b")
	p.wait(time.Minute, true)
	p.expect("1h30m10s +b")
}

func TestDiff_HoldsClosings(t *testing.T) {
	p := newPost(t)
	p.open("a")
	p.wait(time.Minute, true)
	p.close("a")
	p.wait(4*time.Minute, true)
	p.open("a")
	p.wait(time.Minute, true)
	p.close("a")
	p.wait(10*time.Minute, true)
	p.expect("10s +a", "11m0s -a")

	// The third opening within an hour: it flaps.
	p.open("a")
	p.wait(time.Minute, true)
	p.close("a")
	p.wait(59*time.Minute, true)
	p.expect("16m10s +a")
	p.wait(2*time.Minute, true)
	p.expect("1h17m0s -a")
}

func TestDiff_TellsOfAlertsThatAreGone(t *testing.T) {
	p := newPost(t)
	p.open("a", "b")
	p.wait(time.Minute, true)
	delete(p.alerts, "a")
	p.wait(time.Minute, true)
	p.expect("10s +a +b", "1m10s -?")
}

func TestDiff_Silences(t *testing.T) {
	p := newPost(t)
	p.open("a", "b")
	p.alerts["a"].Silenced = true
	p.wait(time.Minute, true)
	p.alerts["a"].Silenced, p.alerts["b"].Silenced = false, true
	p.wait(time.Minute, true)
	p.close("b") // closings pass
	p.wait(10*time.Minute, true)
	p.expect("10s +b", "1m10s +a", "7m0s -b")
}

func TestDiff_RepeatsWhatIsOpen(t *testing.T) {
	p := newPost(t)
	p.open("a", "acked", "silenced")
	p.wait(time.Hour, true)
	p.open("b")
	p.alerts["acked"].Alert.Acknowledged = &task.AlertMark{By: task.NewActor("ann")}
	p.alerts["silenced"].Silenced = true
	p.wait(23*time.Hour-time.Minute, true)
	p.expect("10s +a +acked +silenced", "1h0m10s +b")

	// One message repeats all, and a failed one is no repetition.
	p.wait(time.Minute, false)
	p.expect("24h0m0s =a =b")
	p.wait(24*time.Hour, true)
	p.expect("24h1m0s =a =b plain")
	p.wait(time.Hour, true)
	p.expect("48h1m0s =a =b")

	p.in.Receiver.Repeat = 0
	p.wait(48*time.Hour, true)
	p.expect()
}

func TestDiff_HoldsMessagesOfAPausedReceiver(t *testing.T) {
	p := newPost(t)
	p.in.Receiver.Held = true
	p.open("a", "b")
	p.wait(time.Hour, true)
	if d := p.pass(); d.Due != 2 || p.in.Sent.Mod != 0 {
		t.Errorf("%d alerts are due, %+v was written", d.Due, p.in.Sent)
	}

	p.in.Receiver.Held = false
	p.wait(time.Minute, true)
	p.expect("1h0m5s +a +b")
}

func TestDiff_TellsANewReceiverAll(t *testing.T) {
	p := newPost(t)
	p.open("a")
	p.wait(time.Minute, true)
	p.open("b")
	p.now = p.now.Add(time.Minute)
	if d := p.pass(); !d.Message { // outstanding while the receiver is deleted
		t.Fatal("no message")
	}

	p.in.Receiver.UID = "another"
	p.wait(time.Minute, true)
	p.expect("10s +a", "2m0s +b", "2m5s +a +b")
}

func TestDiff_WaitsForTheOutstandingMessage(t *testing.T) {
	p := newPost(t)
	p.open("a")
	p.now = p.now.Add(time.Minute)
	p.pass()
	p.open("b")
	for range 100 {
		p.now = p.now.Add(time.Minute)
		if d := p.pass(); d.Write {
			t.Fatalf("wrote %+v", d)
		}
	}
	p.expect("1m0s +a")
}

func TestDiff_NamesTheNewestOfVeryMany(t *testing.T) {
	p := newPost(t)
	p.in.Limits.Keys = 100
	for i := range 150 {
		p.open(fmt.Sprintf("old%03d", i))
	}
	p.wait(20*time.Second, true)
	if m := p.in.Sent.Past; len(p.in.Sent.Delivered) != 100 || p.in.Sent.Horizon != 50 || len(m) != 1 {
		t.Fatalf("delivered %d, horizon %d, %d messages; want 100, 50 and 1", len(p.in.Sent.Delivered), p.in.Sent.Horizon, len(m))
	}

	// A new one is named, however much is open.
	p.log = nil
	p.now = p.now.Add(time.Hour)
	p.open("new")
	p.wait(time.Minute, true)
	p.expect("1h0m30s +new")
	if len(p.in.Sent.Delivered) != 100 || p.in.Sent.Horizon != 51 {
		t.Errorf("delivered %d, horizon %d; want 100 and 51", len(p.in.Sent.Delivered), p.in.Sent.Horizon)
	}

	// Those that only counted as delivered are named when few are left.
	for i := range 101 {
		p.close(fmt.Sprintf("old%03d", 149-i))
	}
	p.wait(time.Hour, true)
	if p.in.Sent.Horizon != 0 || len(p.in.Sent.Delivered) != 50 {
		t.Errorf("delivered %d, horizon %d; want 50 and 0", len(p.in.Sent.Delivered), p.in.Sent.Horizon)
	}
}

// What counts as delivered by its ID was told: not what was silenced, not yet due or closed at that time.
func TestDiff_TellsWhatOpensBelowTheHorizon(t *testing.T) {
	p := newPost(t)
	p.in.Limits.Keys = 100
	for i := range 150 {
		p.open(fmt.Sprintf("old%03d", i))
	}
	p.alerts["old000"].Silenced = true
	p.close("old001")
	p.wait(9*time.Minute, true)
	if p.in.Sent.Horizon != 50 {
		t.Fatalf("horizon %d, want 50", p.in.Sent.Horizon)
	}

	p.log = nil
	p.open("old001")
	p.alerts["old000"].Silenced = false
	p.wait(time.Minute, true)
	p.expect("9m5s +old000")

	// The receiver hears that one has closed, and that it has opened again.
	p.close("old149")
	p.wait(10*time.Minute, true)
	p.open("old149")
	p.wait(10*time.Minute, true)
	p.expect("14m5s +old001", "19m5s -old149", "24m5s +old149")
}

func TestDiff_WrongClocksDelayNothing(t *testing.T) {
	p := newPost(t)
	p.open("a")
	p.alerts["a"].Alert.OpenedAt = task.At(p.now.Add(1000 * time.Hour))
	p.in.Sent.Past = []task.AlertMessage{{At: task.At(p.now.Add(1000 * time.Hour))}}
	p.in.Sent.UID, p.in.Sent.Recent = "r", 3
	p.wait(5*time.Second, true)
	p.expect("5s +a")
}

// storm lets alerts open and close and messages end at random, and returns when the last change was.
func (p *post) storm(rng *rand.Rand, d time.Duration, failures float64) {
	outstanding := time.Duration(0)
	for until := p.now.Add(d); p.now.Before(until); p.now = p.now.Add(5 * time.Second) {
		name := fmt.Sprint("t", rng.IntN(6))
		switch a := p.alerts[name]; {
		case rng.Float64() > .05:
		case a == nil || !a.Alert.IsOpen():
			p.open(name)
		default:
			p.close(name)
		}

		if p.in.Sent.Sending == nil {
			outstanding = time.Duration(rng.Int64N(int64(3 * time.Minute)))
		} else if outstanding -= 5 * time.Second; outstanding <= 0 {
			p.end(rng.Float64() >= failures)
		}
		p.pass()
	}
}

// Verifies: G59
func TestDiff_WritesAtMostThreeMessagesInSixMinutes(t *testing.T) {
	for seed := range uint64(60) {
		p := newPost(t)
		p.storm(rand.New(rand.NewPCG(seed, 2)), 6*time.Hour, float64(seed%4)/4)
		for i := 3; i < len(p.times); i++ {
			if within := p.times[i].Sub(p.times[i-3]); within <= 6*time.Minute {
				t.Fatalf("seed %d: four messages within %s, the last at %s", seed, within, p.times[i].Sub(walkStart))
			}
		}
		if len(p.times) < 20 {
			t.Fatalf("seed %d: only %d messages in six hours", seed, len(p.times))
		}
	}
}

// Verifies: G60
func TestDiff_TellsInTime(t *testing.T) {
	for _, c := range []struct {
		name     string
		failures float64
		flapping bool
		within   time.Duration
	}{{"all succeed", 0, false, 11 * time.Minute}, {"after failures", .5, false, 21 * time.Minute}, {"flapping", 0, true, 66 * time.Minute}} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(60) {
				p := newPost(t)
				if !c.flapping {
					p.in.Limits.Flapping = -1
				}
				p.storm(rand.New(rand.NewPCG(seed, 3)), 3*time.Hour, c.failures)
				p.end(c.failures == 0)
				p.wait(c.within, true)

				var open task.AlertKeys
				for _, a := range p.alerts {
					if a.Alert.IsOpen() {
						open = append(open, a.Key)
					}
				}
				if !slices.Equal(p.in.Sent.Delivered, sortedKeys(open)) || len(p.in.Sent.Uncertain) > 0 || p.in.Sent.Sending != nil {
					t.Fatalf("seed %d: delivered %v, uncertain %v, sending %v; open %v", seed, p.in.Sent.Delivered, p.in.Sent.Uncertain, p.in.Sent.Sending, open)
				}
			}
		})
	}
}

func TestKeyOf_StaysTheSame(t *testing.T) {
	a := task.Alert{Namespace: "shop", Task: "sync", UID: "u", Kind: task.AlertFailures}
	again := a
	again.ID, again.Mod, again.Openings, again.Run = 7, 8, 9, "run" // opened again, or restored
	if KeyOf("c", &a) != KeyOf("c", &again) {
		t.Error("the key of an alert has changed")
	}

	seen := map[uint64]string{KeyOf("c", &a): "itself"}
	for name, change := range map[string]func(a *task.Alert) (cluster string){
		"another cluster":   func(*task.Alert) string { return "d" },
		"another namespace": func(a *task.Alert) string { a.Namespace = "web"; return "c" },
		"another task":      func(a *task.Alert) string { a.Task = "b"; return "c" },
		"another uid":       func(a *task.Alert) string { a.UID = "v"; return "c" },
		"another kind":      func(a *task.Alert) string { a.Kind = task.AlertSuccessBy; return "c" },
		"another receiver":  func(a *task.Alert) string { a.Receiver = "ops/slack"; return "c" },
	} {
		b := a
		key := KeyOf(change(&b), &b)
		if other, is := seen[key]; is {
			t.Errorf("%s: the key is that of %s", name, other)
		}
		seen[key] = name
	}
}
