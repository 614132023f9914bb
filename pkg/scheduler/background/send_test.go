package background

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// sources is a TriggerStore in memory. Each source has one ended run for each revision in its history.
type sources struct {
	mu      sync.Mutex
	records map[string][]task.Run // by the name of the source
	cursor  map[string]record.Cursor
	names   []string // of the dependents
	results []string // that all of them ask for

	sent  []store.TriggerSend
	looks []string
	err   error // of writes
	reads int
}

const sourceUID = "abcd"

func (s *sources) ReadSource(_ context.Context, ref record.Ref, _ int64) (store.SourceRead, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.reads++
	r := store.SourceRead{Revision: 1000, EntryCreate: 1, UID: sourceUID, Cursor: s.cursor[ref.Name], CursorMod: s.cursor[ref.Name].Create, Oldest: 5}
	for _, name := range s.names {
		r.Subscribers = append(r.Subscribers, record.Dependent{Name: name, Mod: 5, Subscriber: record.Subscriber{UID: "u", Generation: 1, Results: s.results}})
	}
	for i, run := range s.records[ref.Name] {
		r.Records = append(r.Records, store.Past{ID: run.ID, Create: int64(10 + i), Mod: int64(10 + i)})
	}

	return r, nil
}

func (s *sources) EndedAt(_ context.Context, ref record.Ref, records []store.Past, _ int64) (list []store.PastRecord, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, p := range records {
		list = append(list, store.PastRecord{Past: p, Value: record.EncodeEnded(s.records[ref.Name][p.Create-10])})
	}

	return list, nil
}

func (s *sources) HaveUnsent(_ context.Context, some []store.SourceCursor) ([]bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	unsent := make([]bool, len(some))
	for i, source := range some {
		s.looks = append(s.looks, source.Ref.Name)
		unsent[i] = len(s.records[source.Ref.Name]) > 0
	}

	return unsent, nil
}

func (s *sources) SendTriggers(_ context.Context, _ store.Fences, t store.TriggerSend) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.err != nil {
		return s.err
	}
	s.sent = append(s.sent, t)
	s.cursor[t.Source.Name] = t.Cursor

	return nil
}

// newSources returns a store with a source a that has ended n times, and a Sender for it.
func newSources(n int, dependents ...string) (*sources, *Sender) {
	s := &sources{records: map[string][]task.Run{}, cursor: map[string]record.Cursor{}, names: dependents}
	for i := range n {
		at := time.Date(2026, 1, 2, 12, 0, i, 0, time.UTC)
		s.records["a"] = append(s.records["a"], task.Run{ID: task.RunID(at, sourceUID), UID: sourceUID, State: task.Succeeded, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule})
	}

	return s, NewSender(SenderConfig{
		Store: s, Now: time.Now, Overdue: func() bool { return false }, CountSent: func(int) {}, Logger: zap.NewNop(),
		Ref: func(ns, name string) record.Ref { return record.Ref{Namespace: ns, Name: name, Shard: len(name)} },
	})
}

func sourceRef(name string) record.Ref { return record.Ref{Namespace: "default", Name: name} }

// Dependents may be in other shards than their source.
func TestSender_WritesIntoTheShardOfTheDependent(t *testing.T) {
	s, sender := newSources(1, "b", "report")
	sender.Ask(Send{Source: sourceRef("a")})
	for sender.SendNext(t.Context()) {
	}

	var got []string
	for _, p := range s.sent[0].Triggers {
		got = append(got, fmt.Sprintf("%s %d", p.Ref.Name, p.Ref.Shard))
	}
	if !slices.Equal(got, []string{"b 1", "report 6"}) {
		t.Errorf("sent to %q", got)
	}
}

// A run of a deleted task starts nothing, even if its id looks like one of the task that has its name now.
//
// Verifies: G63
func TestSender_KnowsRunsOfADeletedTask(t *testing.T) {
	s, sender := newSources(3, "b")
	s.records["a"][1].UID = sourceUID[:4] + "othertask"
	sender.Ask(Send{Source: sourceRef("a")})
	sender.SendNext(t.Context())

	var got []string
	for _, p := range s.sent[0].Triggers {
		got = append(got, p.Run)
	}
	if want := []string{s.records["a"][0].ID, s.records["a"][2].ID}; !slices.Equal(got, want) {
		t.Errorf("sent %q, want %q", got, want)
	}
}

// A transaction has the triggers of several ends, as long as it stays small.
func TestSender_SendsSeveralEndsTogether(t *testing.T) {
	for _, c := range []struct {
		dependents, ends int
		want             []int // triggers of each transaction
	}{
		{1, 50, []int{20, 20, 10}},
		{30, 7, []int{90, 90, 30}},
		{100, 2, []int{100, 100}},
	} {
		s, sender := newSources(c.ends)
		for i := range c.dependents {
			s.names = append(s.names, fmt.Sprintf("b%d", i))
		}
		sender.Ask(Send{Source: sourceRef("a")})
		sender.SendNext(t.Context())

		var got []int
		for _, t := range s.sent {
			got = append(got, len(t.Triggers))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d ends for %d dependents are sent in %d, want %d", c.ends, c.dependents, got, c.want)
		}
	}
}

// However its results look, an end can be sent to all dependents.
func TestSender_ResultsFitIntoATransaction(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		keep bool
	}{
		"plain":   {strings.Repeat("x", task.MaxResultBytes-1), true},
		"quotes":  {strings.Repeat(`"`, task.MaxResultBytes-1), true},
		"escaped": {strings.Repeat("\x01", task.MaxResultBytes-1), false},
	} {
		s, sender := newSources(2)
		s.results = []string{"r"}
		for i := range task.MaxDependents {
			s.names = append(s.names, fmt.Sprintf("b%d", i))
		}
		for i := range s.records["a"] {
			s.records["a"][i].Results = map[string]string{"r": c.text}
		}

		sender.Ask(Send{Source: sourceRef("a")})
		sender.SendNext(t.Context())
		if len(s.sent) != 2 {
			t.Fatalf("%s: %d transactions", name, len(s.sent))
		}

		for _, send := range s.sent {
			size := 0
			for _, p := range send.Triggers {
				size += len(record.Encode(p.Trigger))
				if got := p.Cause.Results != nil; got != c.keep {
					t.Fatalf("%s: a trigger has results: %v", name, got)
				}
			}
			if size > maxSendBytes {
				t.Errorf("%s: %d bytes", name, size)
			}
		}
	}
}

// While etcd refuses writes, attempts become rare, however many runs end. When it accepts them, triggers are written within 20 s (G63).
func TestSender_TriesAgainLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sender := newSources(1, "b")
		s.err = task.ErrUnavailable

		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- sender.Run(ctx) }()

		for range 1000 {
			sender.Ask(Send{Source: sourceRef("a")})
			time.Sleep(time.Second / 10)
		}

		// After 1, 2, 4 and 8 s, and then each 15 s.
		s.mu.Lock()
		if s.reads < 9 || s.reads > 11 {
			t.Errorf("%d attempts in 100 s", s.reads)
		}
		s.err = nil
		s.mu.Unlock()

		time.Sleep(20 * time.Second)
		stop()
		<-done
		if len(s.sent) != 1 {
			t.Errorf("%d transactions after etcd has recovered", len(s.sent))
		}
	})
}

// A node looks at its sources slowly, and not while it has more urgent things to do.
func TestSender_LooksInOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sender := newSources(1, "b")
		var overdue sync.Mutex
		isOverdue := true
		sender.cfg.Overdue = func() bool { overdue.Lock(); defer overdue.Unlock(); return isOverdue }

		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- sender.Run(ctx) }()

		var list []Send
		for i := range 100 {
			list = append(list, Send{Source: sourceRef(fmt.Sprintf("s%d", i))})
		}
		sender.Look(1, list)
		sender.Look(2, []Send{{Source: sourceRef("a")}})

		looks := func() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.looks) }
		time.Sleep(10 * time.Second)
		if n := looks(); n != 0 {
			t.Errorf("%d sources were looked at while a tick was overdue", n)
		}

		overdue.Lock()
		isOverdue = false
		overdue.Unlock()
		time.Sleep(1100 * time.Millisecond)
		if n := looks(); n < 20 || n > 61 {
			t.Errorf("%d sources were looked at in a second", n)
		}

		time.Sleep(5 * time.Second)
		stop()
		<-done
		if n := looks(); n != 101 || len(s.sent) != 1 {
			t.Errorf("%d sources were looked at, and %d transactions sent", n, len(s.sent))
		}
	})
}

// A node with very many sources has not looked at all of a shard when it is asked to look again. It goes on with the rest, or it would
// never look at the last ones.
func TestSender_LooksAtTheLastSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sender := newSources(0)
		list := make([]Send, 3*store.SourcesAtOnce)
		for i := range list {
			list[i].Source = sourceRef(fmt.Sprintf("s%03d", i))
		}

		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- sender.Run(ctx) }()

		for range 6 {
			sender.Look(0, list)
			time.Sleep(lookPause + lookPause/2)
		}
		sender.Look(0, nil)
		stop()
		<-done

		looks := map[string]int{}
		for _, name := range s.looks {
			looks[name]++
		}
		for _, send := range list {
			if n := looks[send.Source.Name]; n < 2 || n > 4 {
				t.Errorf("%s was looked at %d times", send.Source, n)
			}
		}
	})
}
