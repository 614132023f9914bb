package alert

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func newGroup(t *testing.T) *post {
	p := newPost(t)
	p.in.Receiver.Group, p.in.Receiver.Repeat, p.in.Limits = task.GroupTask, time.Hour, LimitsOf(task.GroupTask)

	return p
}

// A group gets a run for each alert: ten a minute, closings first, then the newest openings.
func TestDiff_SendsAGroupInPieces(t *testing.T) {
	p := newGroup(t)
	for i := range 25 {
		p.open(fmt.Sprintf("t%02d", i))
	}
	p.wait(30*time.Second, true)
	p.open("new")
	p.wait(time.Minute, true)
	p.close("t24", "t23")
	p.wait(10*time.Minute, true)
	p.expect(
		"10s +t15 +t16 +t17 +t18 +t19 +t20 +t21 +t22 +t23 +t24",
		"1m10s +new +t06 +t07 +t08 +t09 +t10 +t11 +t12 +t13 +t14",
		"2m10s +t00 +t01 +t02 +t03 +t04 +t05",
		"6m30s -t23 -t24")

	for i := range 15 {
		p.open(fmt.Sprintf("u%02d", i))
	}
	p.close("t00", "t01", "t02")
	p.wait(5*time.Minute, false)
	p.log = nil
	p.wait(10*time.Minute, true)
	if n := len(p.log); n < 2 || !strings.Contains(p.log[n-1]+p.log[n-2], "-t00") {
		t.Errorf("the closings are missing: %q", p.log)
	}
}

// An alert that the service rejects delays no other one, although it is sent again and again.
func TestDiff_SendsTheRestOfAGroupWhileSomeFail(t *testing.T) {
	p := newGroup(t)
	for i := range 60 {
		p.open(fmt.Sprintf("t%02d", i))
	}

	rejected := map[uint64]bool{}
	for i := 40; i < 60; i++ { // the newest, which come first
		rejected[p.alerts[fmt.Sprintf("t%02d", i)].Key] = true
	}
	tries := map[uint64]int{}
	for range 20 * 12 {
		p.now = p.now.Add(5 * time.Second)
		p.pass()
		m := p.in.Sent.Sending
		if m == nil {
			continue
		}
		if p.in.Ended = make([]bool, len(m.Runs)); m.Plain {
			t.Fatal("a message of a group is plain; only runs about what has failed before are")
		}
		for i, key := range m.Opened {
			p.in.Ended[i] = !rejected[key]
			tries[key]++
		}
	}

	if n := len(p.in.Sent.Delivered); n != 40 {
		t.Errorf("after 20 minutes, %d of 40 alerts that the service takes are delivered", n)
	}
	for key := range rejected {
		if tries[key] < 3 || tries[key] > 8 {
			t.Errorf("%016x was tried %d times; those that fail have to take turns", key, tries[key])
		}
	}
}

// What the service rejects is tried less and less often. An alert that opens meanwhile does not wait for the next try.
func TestDiff_SendsANewAlertOfAGroupAtOnceAlthoughAnotherFails(t *testing.T) {
	p := newGroup(t)
	p.open("rejected")
	p.wait(24*time.Minute, false)
	p.expect("10s +rejected", "1m10s +rejected", "3m10s +rejected", "8m10s +rejected", "23m10s +rejected")

	p.open("new")
	p.wait(time.Minute, true)
	p.expect("24m10s +new +rejected")
}

// A service with too many incidents gets no further ones until some of them close.
func TestDiff_OpensNothingMoreInAFullGroup(t *testing.T) {
	p := newGroup(t)
	p.in.Limits.Keys = 12
	for i := range 20 {
		p.open(fmt.Sprintf("t%02d", i))
	}
	p.wait(10*time.Minute, true)
	if d := p.pass(); len(d.Sent.Delivered) != 12 || d.NoRoom != 8 || d.Sent.Horizon != 0 {
		t.Fatalf("%d alerts are delivered, %d have no room: %+v", len(d.Sent.Delivered), d.NoRoom, d.Sent)
	}

	p.close("t19", "t18", "t00") // the receiver does not know the last one
	p.wait(10*time.Minute, true)
	if d := p.pass(); len(d.Sent.Delivered) != 12 || d.NoRoom != 5 {
		t.Errorf("%d alerts are delivered, %d have no room", len(d.Sent.Delivered), d.NoRoom)
	}
}

// A group is sent again in rounds, because few alerts fit into a message.
func TestDiff_SendsAGroupAgain(t *testing.T) {
	p := newGroup(t)
	for i := range 25 {
		p.open(fmt.Sprintf("t%02d", i))
	}
	acknowledged := p.alerts["t07"]
	acknowledged.Alert.Acknowledged = &task.AlertMark{By: task.NewActor("ann")}

	for _, all := range []bool{false, true} {
		p.in.Receiver.RepeatAll = all
		last := map[uint64]time.Time{}
		for range 48 * 60 {
			p.now = p.now.Add(time.Minute)
			p.pass()
			if m := p.in.Sent.Sending; m != nil {
				for _, key := range m.Opened {
					last[key] = p.now
				}
			}
			p.end(true)
			for _, a := range p.alerts {
				if silent := p.now.Sub(last[a.Key]); !last[a.Key].IsZero() && silent > 2*time.Hour+5*time.Minute && (all || a != acknowledged) {
					t.Fatalf("%s was sent last %s ago", a.Alert.Task, silent)
				}
			}
		}
		if all != (p.now.Sub(last[acknowledged.Key]) < 3*time.Hour) {
			t.Errorf("acknowledged alerts are sent again: %t: %s ago", all, p.now.Sub(last[acknowledged.Key]))
		}
	}
}

func TestDiff_TellsAllAgainIfTheGroupChanges(t *testing.T) {
	p := newPost(t)
	p.open("a", "b")
	p.wait(time.Hour, true)
	p.close("b")
	p.in.Receiver.Group, p.in.Limits = task.GroupTask, LimitsOf(task.GroupTask)
	p.wait(time.Hour, true)
	p.in.Receiver.Group, p.in.Limits = "", DefaultLimits()
	p.wait(time.Hour, true)
	p.expect("10s +a +b", "1h0m5s +a", "1h5m0s -b", "2h0m5s +a")
}

// One message says that an outage is over. An incident about it must be resolved.
func TestDiff_ClosesOutagesInAGroup(t *testing.T) {
	for group, want := range map[string][]string{"": {"10s +o"}, task.GroupTask: {"10s +o", "6m0s -o"}} {
		p := newPost(t)
		p.in.Receiver.Group, p.in.Limits = group, LimitsOf(group)
		p.open("o")
		p.alerts["o"].Alert.Kind, p.alerts["o"].Alert.Code = task.AlertCluster, task.WarnOutage
		p.wait(time.Minute, true)
		p.close("o")
		p.wait(time.Hour, true)
		p.expect(want...)
	}
}
