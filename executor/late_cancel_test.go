package executor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// newFullNode starts a node whose etcd has no space while SetFull is in force.
func newFullNode(t *testing.T, change ...func(*Config)) (*node, *kvmem.Store) {
	t.Helper()
	memory := kvmem.New(kvmem.Config{Revision: executortest.NewToken(), MinTTL: 1})
	t.Cleanup(memory.Close)

	return newNode(t, kvtest.ClientOf(t, memory), change...), memory
}

// lateCancelOf returns the cancel of an attempt of a run.
func lateCancelOf(run string, token int64) task.LateCancel {
	return task.LateCancel{Namespace: "default", Task: "job", Run: run, Token: token, By: task.NewActor("user:ann")}
}

func withRetries(a *task.Assigned) {
	a.Retry.Attempts, a.Retry.On = 5, []task.State{task.Failed, task.Lost, task.TimedOut}
}

// Which attempts can be cancelled without a change of their record, and what the executor does next with them.
//
// Verifies: G38
func TestLateCancel_OfAnAttempt(t *testing.T) {
	v := view{now: time.Unix(1_800_000_000, 0), session: 2}

	for name, c := range map[string]struct {
		a     func(*attempt)
		state task.State // "": refused with a conflict
		next  action     // after it was cancelled
	}{
		"running":                         {a: running2, state: task.Running, next: doKill},
		"running, a write is under way":   {a: func(a *attempt) { running2(a); a.busy = true }, state: task.Running, next: doKill},
		"running, paused":                 {a: func(a *attempt) { running2(a); a.PauseRequested = true }, state: task.Running, next: doKill},
		"running, its record gone":        {a: func(a *attempt) { running2(a); a.recordGone = true }},
		"waiting for a slot":              {a: func(a *attempt) { a.session = 2 }, state: task.Running, next: doCancel},
		"waiting, paused":                 {a: func(a *attempt) { a.session, a.PauseRequested = 2, true }, state: task.Running, next: doCancel},
		"waiting, from before the rejoin": {a: func(a *attempt) { a.session = 1 }, state: task.Running, next: doCancel},
		"waiting, perhaps handed back":    {a: perhapsHandedBack},
		"waiting, being written":          {a: func(a *attempt) { a.busy = true }},
		"waiting, came and went before":   {a: func(a *attempt) { a.stale = true }},
		"another instance's":              {a: func(a *attempt) { a.foreign = true }},
		"ended, not recorded": {
			a:     func(a *attempt) { a.phase, a.end = phaseEnded, &ending{run: task.Run{State: task.Failed}} },
			state: task.Failed, next: doRecord,
		},
		"recorded": {a: func(a *attempt) { a.phase = phaseSettled }},
	} {
		a := &attempt{Held: &record.Held{}}
		a.State, a.KillGrace = task.Running, task.Duration(10*time.Second)
		c.a(a)

		state, err := a.mayCancelLate()
		if state != c.state || (c.state == "") != errors.Is(err, task.ErrConflict) {
			t.Errorf("%s: %q, %v; want %q", name, state, err, c.state)
		}
		if err != nil || state.Final() {
			continue
		}

		held := *a.Held
		s := newState()
		s.cancelsLate[lateID{}] = &lateCancel{LateCancel: task.LateCancel{By: task.NewActor("user:ann")}}
		s.bindLateCancel(a)

		if got := nextStep(a, v); got != c.next {
			t.Errorf("%s: then %d, want %d", name, got, c.next)
		}

		// Whatever the inbox shows next, the cancel holds.
		a.setHeld(&held)
		if !a.CancelRequested || !a.CancelledBy.Is("user:ann") || held.CancelRequested || Next(a.Assigned, task.Run{State: task.Failed}, v.now, 0) != nil {
			t.Errorf("%s: after its record was read again: %+v", name, a.Held)
		}
	}
}

// Verifies: G38
func TestLateCancel_EndsARunningAttemptAndRecordsItLater(t *testing.T) {
	n, etcd := newFullNode(t, func(c *Config) { c.Slots = 1 })
	n.join()
	token := n.assign("runs", "echo $$ >@runs; exec sleep 300", withRetries)
	pid := n.began("runs")
	waiting := n.assign("waits", "echo $$ >@waits", withRetries)
	n.sees("waits", "waits for the slot", func(a *attempt) bool { return a.session != 0 })

	// While etcd has space, nobody can end an attempt without a record of the request.
	if _, err := n.CancelAttempt(t.Context(), lateCancelOf("runs", token)); !errors.Is(err, task.ErrConflict) || !strings.Contains(err.Error(), "accepts writes") {
		t.Fatalf("with space in etcd: %v", err)
	}

	etcd.SetFull(true)
	for _, c := range []task.LateCancel{lateCancelOf("runs", token+1), lateCancelOf("other", token)} {
		if _, err := n.CancelAttempt(t.Context(), c); !errors.Is(err, task.ErrConflict) {
			t.Errorf("of an attempt that is not here: %v", err)
		}
	}

	// First the one that waits, because it starts when the other one frees the slot.
	if got, err := n.CancelAttempt(t.Context(), lateCancelOf("waits", waiting)); err != nil || got.State.Final() {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, again := range []bool{false, true} {
		if got, err := n.CancelAttempt(t.Context(), lateCancelOf("runs", token)); err != nil || got.State.Final() || got.Repeated != again {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	executortest.Eventually(t, "the process is gone", func() bool { return !executortest.Alive(pid) })

	// Both the cancel and the end are on disk by now, or soon.
	executortest.Eventually(t, "the ends are kept", func() bool {
		l, err := openLateCancels(n.cfg.Dir)
		executortest.Must(t, err)

		return len(l.list()) == 2 && !slices.ContainsFunc(l.list(), func(c task.LateCancel) bool {
			return !c.By.Is("user:ann") || c.End == nil || c.End.State != task.Cancelled || !c.End.CancelledBy.Is("user:ann")
		})
	})
	// A second cancel that is applied only now takes nothing away from the first.
	executortest.Must(t, n.callAndWait(t.Context(), func() {
		if got, err := n.applyLateCancel(lateCancelOf("runs", token)); err != nil || got.State != task.Cancelled || !got.Repeated {
			t.Errorf("%+v, %v", got, err)
		}
		n.dropLateCancels()
	}))
	if kept := n.lateFile.list(); len(kept) != 2 {
		t.Errorf("kept %+v", kept)
	}
	if n.history("runs") != nil || n.exists("waits") {
		t.Error("an end is recorded in a full etcd, or a cancelled attempt has started")
	}

	etcd.SetFull(false)
	for _, run := range []string{"runs", "waits"} {
		r := n.ended(run)
		if r.State != task.Cancelled || r.Reason != task.ReasonCancelled || !r.CancelledBy.Is("user:ann") || n.waits(run) != nil {
			t.Errorf("%s: %+v", run, r)
		}
	}
	executortest.Eventually(t, "nothing is kept any more", func() bool {
		info, err := os.Stat(filepath.Join(n.cfg.Dir, "late-cancels"))
		return err == nil && info.Size() == 0
	})
}

// An attempt that has ended cannot be cancelled any more, even if etcd does not know its end.
//
// Verifies: G38
func TestLateCancel_OfAnEndedAttemptHasNoEffect(t *testing.T) {
	n, etcd := newFullNode(t)
	n.join()
	token := n.assign("r1", "echo $$ >@r1; while ! test -e @go; do sleep 0.01; done; exit 1", withRetries)
	n.began("r1")
	etcd.SetFull(true)
	n.touch("go")
	n.sees("r1", "has ended", func(a *attempt) bool { return a.phase == phaseEnded })

	if got, err := n.CancelAttempt(t.Context(), lateCancelOf("r1", token)); err != nil || got.State != task.Failed {
		t.Errorf("%+v, %v", got, err)
	}

	// The same if it ends while the cancel is being written to disk.
	late := lateCancelOf("r1", token)
	executortest.Must(t, n.lateFile.keep(late))
	executortest.Must(t, n.callAndWait(t.Context(), func() {
		if got, err := n.applyLateCancel(late); err != nil || got.State != task.Failed || got.Repeated {
			t.Errorf("%+v, %v", got, err)
		}
	}))
	executortest.Eventually(t, "the cancel is dropped", func() bool { return len(n.lateFile.list()) == 0 })

	etcd.SetFull(false)
	executortest.Eventually(t, "the retry waits", func() bool { return n.waits("r1") != nil })
}

// A daemon has cancelled two attempts while etcd was full, and was killed. It has seen the end of one of them. Its
// successor records that end, and retries neither.
//
// Verifies: G38
func TestLateCancel_SurvivesTheDaemon(t *testing.T) {
	etcd := newEtcd(t)
	dir := t.TempDir()
	former := func(a *task.Assigned) { withRetries(a); a.Instance = "i0" }

	// Like a node that has not joined yet: its inbox is not read.
	n := newNode(t, etcd, func(c *Config) { c.Instance = "i0" })
	tokens := map[string]int64{}
	for _, run := range []string{"seen", "unseen", "other"} {
		tokens[run] = n.assign(run, "true", former)
	}
	n.stop()

	kept, err := openLateCancels(dir)
	executortest.Must(t, err)
	for _, run := range []string{"seen", "unseen", "gone"} {
		c := lateCancelOf(run, tokens[run])
		if run == "seen" {
			c.End = &task.Run{ID: run, State: task.Cancelled, Reason: task.ReasonCancelled, Signal: "SIGTERM", EndedAt: task.At(time.Now())}
		}
		executortest.Must(t, kept.keep(c))
	}

	n = newNode(t, etcd, func(c *Config) {
		c.Dir, c.Dead = dir, func(instance string) bool { return instance == "i0" }
	})
	n.join()

	if r := n.ended("seen"); r.State != task.Cancelled || r.Signal != "SIGTERM" || !r.CancelledBy.Is("user:ann") || r.Token != tokens["seen"] {
		t.Errorf("seen: %+v", r)
	}
	if r := n.ended("unseen"); r.State != task.Lost || !r.CancelledBy.Is("user:ann") {
		t.Errorf("unseen: %+v", r)
	}
	executortest.Eventually(t, "the attempt that was not cancelled is retried", func() bool { return n.waits("other") != nil })

	if n.waits("seen") != nil || n.waits("unseen") != nil {
		t.Error("a cancelled run waits for a retry")
	}
	executortest.Eventually(t, "nothing is kept any more", func() bool { return len(n.lateFile.list()) == 0 })
}

// Verifies: G38
func TestLateCancels_SurviveACrash(t *testing.T) {
	dir := t.TempDir()
	l, err := openLateCancels(dir)
	executortest.Must(t, err)

	first, second := lateCancelOf("r1", 1), lateCancelOf("r2", 2)
	executortest.Must(t, l.keep(first))
	executortest.Must(t, l.keep(second))
	second.End = &task.Run{State: task.Cancelled}
	executortest.Must(t, l.keep(second))

	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_WRONLY, 0)
	executortest.Must(t, err)
	_, err = f.WriteString(`{"namespace":"torn`)
	executortest.Must(t, errors.Join(err, f.Close()))

	l, err = openLateCancels(dir)
	executortest.Must(t, err)
	executortest.Must(t, l.keep(lateCancelOf("r3", 3)))
	executortest.Must(t, l.drop(lateIDOf(&first)))

	// The file is rewritten when many of its lines no longer count, and emptied when nothing is kept.
	for range maxLateLines {
		executortest.Must(t, l.keep(lateCancelOf("r3", 3)))
	}
	executortest.Must(t, l.keep(first))
	executortest.Must(t, l.drop(lateIDOf(&first)))

	l, err = openLateCancels(dir)
	executortest.Must(t, err)
	if got := l.list(); len(got) != 2 || l.expired != 0 || l.kept[lateIDOf(&second)].End == nil {
		t.Errorf("kept %+v, %d lines no longer count", got, l.expired)
	}
	if info, err := os.Stat(l.path); err != nil || info.Mode().Perm() != 0o600 || info.Size() != l.size {
		t.Errorf("the file: %v, %v", info, err)
	}

	for _, c := range l.list() {
		executortest.Must(t, l.drop(lateIDOf(&c)))
	}
	if info, err := os.Stat(l.path); err != nil || info.Size() != 0 {
		t.Errorf("the file: %v, %v", info, err)
	}
}
