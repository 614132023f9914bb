package executor

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// freeze writes the frozen namespaces and returns the mod revision of the record.
func (n *node) freeze(namespaces ...string) int64 {
	n.t.Helper()
	f := task.Freezes{Holding: []task.Freeze{}}
	for _, ns := range namespaces {
		f, _ = f.Freeze(task.Freeze{Namespace: ns})
	}

	return n.put(n.keys.Freezes(), f)
}

func TestExecutor_StartsNothingThatIsFrozen(t *testing.T) {
	told := make(chan struct{}, 10)
	n := newNode(t, newEtcd(t), func(c *Config) { c.Obeyed = func() { told <- struct{}{} } })
	n.join()
	n.assign("before", "echo $$ >@before; while ! test -e @go; do sleep 0.01; done")
	n.began("before")
	rev := n.freeze("default")
	<-told

	if n.Froze() != rev {
		t.Errorf("it obeys the record of revision %d, want %d", n.Froze(), rev)
	}

	n.assign("r1", "")
	n.assign("r2", "", noop)
	a := executortest.Assigned("r3", nil)
	noop(&a)
	other := record.Ref{Namespace: "other", Name: "job"}
	n.put(n.keys.Run("n1", other, "r3"), a)
	executortest.Eventually(t, "what is not frozen runs", func() bool { r, _ := read[task.Run](n, n.keys.Ended(other, "r3")); return r != nil })
	n.touch("go") // running attempts continue
	n.ended("before")

	for _, run := range []string{"r1", "r2"} {
		if a, _ := n.inbox(run); a == nil || n.history(run) != nil {
			t.Errorf("%s has not stayed in the inbox", run)
		}
	}

	n.freeze()
	n.ended("r1")
	n.ended("r2")
}

// lateFreezes delays the freezes of a new session. A node that joins may have missed a freeze, so it has to read
// them before it starts anything.
type lateFreezes struct {
	Inbox
	begin chan struct{}
}

func (l *lateFreezes) FollowFreezes(ctx context.Context, relist time.Duration, apply func(store.FreezeRecord) error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.begin:
	}

	return l.Inbox.FollowFreezes(ctx, relist, apply)
}

func TestExecutor_KnowsTheFreezesBeforeItStartsAnything(t *testing.T) {
	late := &lateFreezes{begin: make(chan struct{}, 10)}
	n := newNode(t, newEtcd(t), func(c *Config) { late.Inbox, c.Inbox = c.Inbox, late })

	for join := range 2 { // at the second join, it has only the freezes of the former session
		if join == 1 {
			n.freeze()
			n.touch("go")
			n.ended("r0")
		}

		n.join()
		run := []string{"r0", "r1"}[join]
		n.assign(run, "while ! test -e @go; do sleep 0.01; done", func(a *task.Assigned) { a.Action.Process.Shell += "; true" })
		waits := func() bool { return value(n.metrics.waiting) == 1 && n.Running() == 0 }
		executortest.Eventually(t, run+" waits", waits)
		rev := n.freeze("default")
		late.begin <- struct{}{}
		executortest.Eventually(t, "it obeys", func() bool { return n.Froze() == rev })

		if !waits() {
			t.Fatalf("%s was started", run)
		}
	}
}

// An attempt that is about to start when a freeze arrives may start. Until it has, the node must not confirm the
// freeze.
func TestExecutor_SaysThatItObeysWhenNothingIsAboutToStart(t *testing.T) {
	told := 0
	e := &Executor{cfg: Config{Obeyed: func() { told++ }}, state: newState()}
	frozen, other := &attempt{Held: &record.Held{}, phase: phaseRunning}, &attempt{Held: &record.Held{}, phase: phaseRunning}
	frozen.Namespace, other.Namespace = "default", "other"
	e.all = []*attempt{frozen, other}
	f, _ := task.Freezes{}.Freeze(task.Freeze{Namespace: "default"})
	e.hearFreezes(0, store.FreezeRecord{Freezes: f, Mod: 7})
	e.obeyFreezes()

	if e.Froze() != 0 || told != 0 {
		t.Fatal("it obeys while an attempt is about to start")
	}

	frozen.startedAt = time.Now()
	e.obeyFreezes()
	e.obeyFreezes()

	if e.Froze() != 7 || told != 1 {
		t.Errorf("it obeys %d, and was notified %d times", e.Froze(), told)
	}

	e.hearFreezes(3, store.FreezeRecord{Mod: 9}) // from a session that has ended
	e.obeyFreezes()

	if e.Froze() != 7 {
		t.Error("it obeys what was read under another session")
	}
}

// When the session may have expired, others may consider the node gone, and a freeze may have been confirmed
// without it.
func TestExecutor_StartsNothingWhenItsSessionMayBeOver(t *testing.T) {
	n := newNode(t, newEtcd(t))
	var renewed atomic.Int64 // in nanoseconds before now
	renewed.Store(int64(11 * time.Second))
	key := n.keys.Node("n1")
	f := kv.CreateFence(key, n.put(key, task.Node{Instance: "i1"}))
	n.Joined(Session{Fence: f, TTL: 10 * time.Second, LastRenewal: func() time.Time { return time.Now().Add(-time.Duration(renewed.Load())) }})
	n.assign("r1", "", noop)
	n.assign("r2", "")
	executortest.Eventually(t, "both are seen", func() bool { return value(n.metrics.waiting) == 2 })
	beats := n.Beats()
	executortest.Eventually(t, "it looks again", func() bool { return n.Beats() > beats+1 })

	if n.Running() > 0 || n.history("r1") != nil {
		t.Fatal("it started something")
	}

	renewed.Store(int64(time.Second))
	n.ended("r1")
	n.ended("r2")
}
