package systemd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

// fakeLife is a node as the service manager sees it.
type fakeLife struct {
	mu          sync.Mutex
	idle, stuck error
	after       time.Duration
}

func (f *fakeLife) set(idle, stuck error) {
	f.mu.Lock()
	f.idle, f.stuck = idle, stuck
	f.mu.Unlock()
}

func (f *fakeLife) CheckFiring() error { f.mu.Lock(); defer f.mu.Unlock(); return f.idle }
func (f *fakeLife) CheckAlive() error  { f.mu.Lock(); defer f.mu.Unlock(); return f.stuck }
func (f *fakeLife) LostAfter() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.after
}
func (f *fakeLife) Status() string { return "Ready: 4 shards" }

// heard runs life with a service manager, and returns a function that returns all lines that the service manager
// has received since the previous call.
func heard(t *testing.T, watched time.Duration, life func(ctx context.Context, stop func(), m *Notifier, lines func() []string) error) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		m := &Notifier{drainTimeout: 30 * time.Second, watchdog: watched, log: zap.NewNop(), send: func(state string) error {
			mu.Lock()
			defer mu.Unlock()

			told = append(told, strings.Split(state, "\n")...)

			return nil
		}}

		lines := func() []string {
			mu.Lock()
			defer mu.Unlock()

			l := told
			told = nil

			return l
		}

		ctx, stop := context.WithCancel(t.Context())
		defer stop()

		_ = m.ReportWhile(ctx, func() error { return life(ctx, stop, m, lines) })
	})
}

func has(t *testing.T, lines []string, wanted ...string) {
	t.Helper()

	for _, w := range wanted {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, w) }) {
			t.Errorf("not sent: %q; sent: %q", w, lines)
		}
	}
}

func hasNot(t *testing.T, lines []string, unwanted ...string) {
	t.Helper()

	for _, w := range unwanted {
		if slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, w) }) {
			t.Errorf("sent: %q; all: %q", w, lines)
		}
	}
}

func TestManager_IsToldThatTheNodeIsReadyWhenItFires(t *testing.T) {
	heard(t, 0, func(_ context.Context, stop func(), m *Notifier, lines func() []string) error {
		m.SetStartupStatus("etcd does not\nanswer")
		time.Sleep(time.Hour)
		said := lines()
		has(t, said, "STATUS=Waiting: etcd does not answer")
		hasNot(t, said, "READY", "WATCHDOG")

		node := &fakeLife{idle: errors.New("2 of the 4 shards of this node are served")}
		m.SetNode(node)
		time.Sleep(time.Second)
		said = lines()
		has(t, said, "STATUS=Not ready: 2 of the 4 shards")
		hasNot(t, said, "READY")

		node.set(nil, nil)
		time.Sleep(time.Second)
		has(t, lines(), "READY=1", "STATUS=Ready: 4 shards")

		// A node that becomes unready later remains started.
		node.set(errors.New("the node has no session with etcd"), nil)
		time.Sleep(10 * time.Second)
		has(t, lines(), "STATUS=Not ready: the node has no session")
		node.set(nil, nil)
		time.Sleep(10 * time.Second)
		hasNot(t, lines(), "READY")

		// After a new epoch, another instance of the node follows.
		m.SetNode(nil)
		time.Sleep(10 * time.Second)
		has(t, lines(), "RELOADING=1", "MONOTONIC_USEC=")
		m.SetNode(node)
		time.Sleep(time.Second)
		has(t, lines(), "READY=1")

		stop()
		synctest.Wait()
		has(t, lines(), "STOPPING=1", "EXTEND_TIMEOUT_USEC=60000000") // 30 s to drain, and 30 s more

		return nil
	})
}

// Verifies: G52
func TestManager_HearsNothingOfANodeThatStandsStill(t *testing.T) {
	heard(t, 2*time.Minute, func(_ context.Context, _ func(), m *Notifier, lines func() []string) error {
		node := &fakeLife{}
		m.SetNode(node)
		time.Sleep(time.Minute)
		lines()
		time.Sleep(time.Minute)

		if n := len(lines()); n < 6 {
			t.Errorf("%d keep-alive messages in a minute, to a manager that waits for two minutes", n)
		}

		node.set(nil, errors.New("the node's executor stands still"))
		time.Sleep(time.Second)
		lines()
		time.Sleep(time.Hour)
		hasNot(t, lines(), "WATCHDOG")
		node.set(nil, nil)
		time.Sleep(time.Minute)
		has(t, lines(), "WATCHDOG=1")

		return nil
	})
}

func TestManager_IsAskedForPatienceAsLongAsAttemptsMayBeAdopted(t *testing.T) {
	heard(t, 2*time.Minute, func(_ context.Context, _ func(), m *Notifier, lines func() []string) error {
		node := &fakeLife{after: 2 * time.Minute}
		m.SetNode(node)

		for _, c := range []struct {
			lostAfter time.Duration // the cluster's lost_after, which changes
			want      string
		}{
			{time.Minute, ""}, {2 * time.Minute, ""}, {10 * time.Minute, "WATCHDOG_USEC=600000000"}, {10 * time.Minute, ""},
			{time.Minute, ""}, // attempts that were assigned before have ten minutes
			{time.Hour, "WATCHDOG_USEC=3600000000"},
		} {
			node.mu.Lock()
			node.after = c.lostAfter
			node.mu.Unlock()

			time.Sleep(10 * time.Second)

			if said := lines(); c.want == "" {
				hasNot(t, said, "WATCHDOG_USEC")
			} else {
				has(t, said, c.want)
			}
		}

		return nil
	})
}

func TestManager_SaysWhyTheNodeEnded(t *testing.T) {
	var last string
	m := &Notifier{log: zap.NewNop(), send: func(state string) error { last = state; return nil }}

	err := m.ReportWhile(t.Context(), func() error { return errors.New("name n1 is\ntaken") })
	if err == nil || last != "STATUS=Failed: name n1 is taken" {
		t.Errorf("error %v, sent %q", err, last)
	}
}
