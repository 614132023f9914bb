package executor

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// lossyInbox loses the answers to hand-backs. If delay is set, it also delays the request until the test calls
// deliver. While stalled is set, its watch delivers nothing.
type lossyInbox struct {
	Inbox
	delay     bool
	stalled   atomic.Bool
	handBacks chan record.Held // receives every hand-back; the first one is lost or delayed
	rewrites  chan error       // receives the results of all rewrites
}

func newLossyInbox(delay bool) *lossyInbox {
	return &lossyInbox{delay: delay, handBacks: make(chan record.Held, 100), rewrites: make(chan error, 100)}
}

func (l *lossyInbox) HandBack(ctx context.Context, h record.Held) error {
	if !l.delay {
		if err := l.Inbox.HandBack(ctx, h); err != nil {
			return err
		}
	}

	l.handBacks <- h

	return task.ErrUnknown
}

// deliver sends a delayed hand-back to etcd.
func (l *lossyInbox) deliver(ctx context.Context, h record.Held) error {
	return l.Inbox.HandBack(ctx, h)
}

func (l *lossyInbox) Rewrite(ctx context.Context, session kv.Fence, h record.Held) (int64, error) {
	mod, err := l.Inbox.Rewrite(ctx, session, h)
	l.rewrites <- err
	return mod, err
}

func (l *lossyInbox) FollowInbox(ctx context.Context, node string, relist time.Duration, apply func(store.InboxBatch) error) error {
	return l.Inbox.FollowInbox(ctx, node, relist, func(b store.InboxBatch) error {
		if l.stalled.Load() {
			return nil
		}
		return apply(b)
	})
}

// newLossyNode starts a node whose only slot is taken, and an attempt r1 that waits for it.
func newLossyNode(t *testing.T, l *lossyInbox) (n *node) {
	n = newNode(t, newEtcd(t), func(c *Config) {
		c.Slots = 1
		l.Inbox, c.Inbox = c.Inbox, l
	})

	n.join()
	n.assign("first", "echo $$ >@first; while ! test -e @go; do sleep 0.01; done")
	n.began("first")

	n.assign("r1", "echo $$ >>@r1; while ! test -e @end; do sleep 0.01; done")
	n.sees("r1", "waits", func(*attempt) bool { return true })

	return n
}

// An attempt is handed back, but the answer is lost. The node is resumed before its watch reports that the record
// is gone. The run is in the queue, so the attempt must not start here, too.
//
// Verifies: G9
func TestExecutor_HandBackWithLostAnswerIsNotStarted(t *testing.T) {
	l := newLossyInbox(false)
	n := newLossyNode(t, l)
	l.stalled.Store(true)

	n.HandBack()
	<-l.handBacks
	n.Resume()
	n.touch("go") // frees the slot

	// Before the node starts the attempt, it has to rewrite its record, which fails.
	for conflict := false; !conflict; {
		select {
		case err := <-l.rewrites:
			conflict = errors.Is(err, task.ErrConflict)
		case <-time.After(5 * time.Millisecond):
		}

		if n.exists("r1") {
			t.Fatal("an attempt that is back in the queue has been started")
		}
	}

	l.stalled.Store(false)
	n.join()
	n.assign("next", "true")
	n.ended("next")

	if n.exists("r1") {
		t.Error("an attempt that is back in the queue has been started")
	}

	if w := n.waits("r1"); w == nil || len(w.Attempts) != 0 {
		t.Errorf("in the queue: %+v", w)
	}
}

// A hand-back has an unknown outcome, the node is resumed and the attempt starts. If the hand-back arrives after
// that, it must be void.
//
// Verifies: G9
func TestExecutor_LateHandBackIsVoid(t *testing.T) {
	l := newLossyInbox(true)
	n := newLossyNode(t, l)

	n.HandBack()
	sent := <-l.handBacks
	n.Resume()
	n.touch("go")
	n.began("r1")

	if err := l.deliver(t.Context(), sent); !errors.Is(err, task.ErrConflict) {
		t.Fatalf("the late hand-back: %v", err)
	}

	if w := n.waits("r1"); w != nil {
		t.Errorf("a run that has been started waits in the queue: %+v", w)
	}

	n.touch("end")

	if r := n.ended("r1"); r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}
}

// The same with a join in between. The attempt was dispatched under the new session, and the watch delivered it
// before the node knew of that session. So it needs no adoption because of the session, but a rewrite must still
// make the late hand-back void.
func TestExecutor_LateHandBackIsVoidAfterAJoin(t *testing.T) {
	l := newLossyInbox(true)
	n := newNode(t, newEtcd(t), func(c *Config) {
		c.Slots = 1
		l.Inbox, c.Inbox = c.Inbox, l
	})

	n.join()

	key := n.keys.Node("n1")
	session := Session{Fence: kv.CreateFence(key, n.recreate(key)), LastRenewal: time.Now}
	n.HandBack() // before r1 arrives, so that it does not start at once
	n.assign("r1", "echo $$ >>@r1; while ! test -e @end; do sleep 0.01; done")
	sent := <-l.handBacks

	n.Joined(session)
	n.Resume()
	n.began("r1")

	if err := l.deliver(t.Context(), sent); !errors.Is(err, task.ErrConflict) {
		t.Fatalf("the late hand-back: %v", err)
	}

	if w := n.waits("r1"); w != nil {
		t.Errorf("a run that has been started waits in the queue: %+v", w)
	}
}

// recreate deletes and puts the node's key again, and returns its create revision.
func (n *node) recreate(key string) int64 {
	n.t.Helper()
	if _, err := n.etcd.Delete(n.t.Context(), key); err != nil {
		n.t.Fatal(err)
	}
	return n.put(key, task.Node{Instance: "i1"})
}
