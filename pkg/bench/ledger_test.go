package bench

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// history is a shard with one task that has a tick every 100 ms, and what happened to it.
type history struct {
	t      *testing.T
	l      load
	ref    record.Ref
	uid    string
	ledger ledger
	rev    int64
}

func newHistory(t *testing.T) *history {
	keys, err := record.NewKeys("/test")
	if err != nil {
		t.Fatal(err)
	}

	h := &history{t: t, ref: record.Ref{Namespace: benchNamespace, Name: taskName(0)}, rev: 10,
		l:      load{tasks: 1, period: saturationPeriod, origin: time.Date(2026, 11, 20, 22, 5, 0, 0, time.UTC), action: noopAction, overlap: task.OverlapAllow, keep: 20},
		ledger: ledger{keys: keys, period: saturationPeriod.Milliseconds(), entries: map[string]*entry{}, runs: map[string]*run{}}}
	h.create()

	return h
}

// create creates the task of the load, in place of the former one.
func (h *history) create() {
	_, e := h.l.makeTask(0)
	h.uid = e.UID
	clear(h.ledger.entries)
	h.put(h.ledger.keys.Entry(h.ref), e)
}

// put writes a key: the first time as a create, then as a rewrite.
func (h *history) put(key string, v any) {
	h.rev++
	h.ledger.addEvent(check.Event{Revision: h.rev, Key: key, Value: mustJSON(v), ModRevision: h.rev, CreateRevision: h.rev})
}

func (h *history) id(n int) string {
	return task.RunID(h.l.origin.Add(time.Duration(n)*saturationPeriod), h.uid)
}

func (h *history) fire(n int) {
	h.put(h.ledger.keys.Run(nodeName, h.ref, h.id(n)), task.Assigned{Run: task.Run{UID: h.uid, State: task.Dispatched}})
}

func (h *history) finish(n int, s task.State) {
	h.put(h.ledger.keys.Ended(h.ref, h.id(n)), task.Run{UID: h.uid, State: s, Trigger: task.TriggerSchedule})
	if s == task.Succeeded || s == task.Failed {
		h.ledger.addEvent(check.Event{Revision: h.rev, Key: h.ledger.keys.Run(nodeName, h.ref, h.id(n)), Deleted: true, ModRevision: h.rev})
	}
}

// skip writes a record of several skipped ticks, the first of which is n.
func (h *history) skip(n int, ticks int64) {
	h.put(h.ledger.keys.Ended(h.ref, h.id(n)), task.Run{UID: h.uid, State: task.Skipped, Trigger: task.TriggerSchedule, TickRange: task.TickRange{Count: ticks}})
}

// other adds a task that has a tick every 250 ms by its own schedule, and fires its tick at ms, unless that is 0.
func (h *history) other(ms int) {
	l := h.l
	l.period = 250 * time.Millisecond
	t, e := l.makeTask(1)
	ref := record.Ref{Namespace: benchNamespace, Name: t.Name}
	e.Anchor = task.At(l.origin)
	h.put(h.ledger.keys.Entry(ref), e)

	if ms > 0 {
		id := task.RunID(l.origin.Add(time.Duration(ms)*time.Millisecond), e.UID)
		h.put(h.ledger.keys.Run(nodeName, ref, id), task.Assigned{Run: task.Run{UID: e.UID, State: task.Dispatched}})
		h.put(h.ledger.keys.Ended(ref, id), task.Run{UID: e.UID, State: task.Succeeded, Trigger: task.TriggerSchedule})
		h.ledger.addEvent(check.Event{Revision: h.rev, Key: h.ledger.keys.Run(nodeName, ref, id), Deleted: true, ModRevision: h.rev})
	}
}

func (h *history) mark(n int) {
	h.put(h.ledger.keys.Watermark(0), record.Watermark{Time: task.At(h.l.origin.Add(time.Duration(n) * saturationPeriod)), Seen: h.rev, Nonce: task.NewUID()})
}

func TestLedger_FindsWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(h *history)
		want string // in the fault; "": no fault
	}{
		{"all is well", func(h *history) { h.fire(1); h.finish(1, task.Succeeded); h.finish(2, task.Skipped); h.mark(2) }, ""},
		{"a record of skipped ticks that was extended", func(h *history) { h.finish(1, task.Skipped); h.skip(1, 2); h.mark(2) }, ""},
		{"ticks that end before the watermark", func(h *history) {
			h.l.end = h.l.origin.Add(saturationPeriod)
			h.create()
			h.fire(1)
			h.finish(1, task.Succeeded)
			h.mark(3)
		}, ""},
		{"a tick without an outcome", func(h *history) { h.fire(1); h.finish(1, task.Succeeded); h.mark(2) }, "had 2 ticks, but 1 have an outcome"},
		{"a tick beyond the watermark", func(h *history) { h.fire(1); h.finish(1, task.Succeeded) }, "had 0 ticks, but 1"},
		{"a run dispatched twice", func(h *history) { h.fire(1); h.finish(1, task.Succeeded); h.fire(1); h.mark(1) }, "was dispatched 2 times"},
		{"a run that never ends", func(h *history) { h.fire(1); h.mark(1) }, "but its end was recorded 0 times"},
		{"a run that ends twice", func(h *history) { h.fire(1); h.finish(1, task.Succeeded); h.finish(1, task.Succeeded); h.mark(1) }, "but its end was recorded 2 times"},
		{"a run that fails", func(h *history) { h.fire(1); h.finish(1, task.Failed); h.mark(1) }, `ended as "failed"`},
		{"a tick both run and skipped", func(h *history) { h.fire(1); h.finish(1, task.Skipped); h.finish(1, task.Succeeded); h.mark(1) }, "several outcomes"},
		{"another schedule, fired too soon", func(h *history) {
			h.other(250)
			h.fire(1)
			h.fire(2)
			h.finish(1, task.Succeeded)
			h.finish(2, task.Succeeded)
			h.mark(2)
		}, "t0000001 had 0 ticks, but 1"},
		{"another schedule's tick without an outcome", func(h *history) {
			h.other(0)

			for i := 1; i <= 3; i++ {
				h.fire(i)
				h.finish(i, task.Succeeded)
			}

			h.mark(3)
		}, "t0000001 had 1 ticks, but 0"},
		{"another schedule's run of no tick", func(h *history) { h.other(200) }, "is not a tick"},
		{"a run of no tick", func(h *history) {
			h.put(h.ledger.keys.Run(nodeName, h.ref, task.RunID(h.l.origin.Add(150*time.Millisecond), h.uid)), 1)
		}, "is not a tick"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHistory(t)
			c.do(h)
			var got tally
			h.ledger.addToTally(&got, true)

			switch err := got.faultsAsError(); {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("the faults are %v, want %q", err, c.want)
			}
		})
	}
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
