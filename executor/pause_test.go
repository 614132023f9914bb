package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/task"
)

func pause(a *task.Assigned) {
	a.PauseRequested, a.PausedBy, a.ResumedBy = true, task.NewActor("ann"), nil
}
func letGoOn(a *task.Assigned) { a.PauseRequested, a.ResumedBy = false, task.NewActor("bob") }

// is waits until the record of a run has a state.
func (n *node) is(run string, state task.State) *task.Assigned {
	n.t.Helper()
	var a *task.Assigned
	executortest.Eventually(n.t, run+" is "+string(state), func() bool { a, _ = n.inbox(run); return a != nil && a.State == state })

	return a
}

// still reports whether a file to which a process writes continuously does not grow.
func (n *node) still(name string) bool {
	size := func() int64 {
		info, err := os.Stat(n.file(name))
		if err != nil {
			return 0
		}
		return info.Size()
	}

	before := size()
	time.Sleep(30 * time.Millisecond) // time for an incorrect executor to fail

	return size() == before
}

const counts = "while :; do echo >>@%s; sleep 0.002; done"

func TestPause_OfARunningAttempt(t *testing.T) {
	t.Parallel()
	n := newNode(t, newEtcd(t))
	n.join()
	n.assign("pauses", "while ! test -e @go; do echo >>@pauses; sleep 0.002; done; exit 3", func(a *task.Assigned) { a.Retry.Attempts = 2 })
	n.wroteLine("pauses")
	n.change("pauses", pause) // before it is recorded as running

	a := n.is("pauses", task.Paused)
	if a.PausedAt.IsZero() || a.StartedAt.IsZero() || a.PausedMS != 0 || !a.PausedBy.Is("ann") || !a.PauseRequested {
		t.Errorf("got %+v", a)
	}

	if !n.still("pauses") {
		t.Error("the attempt continues although it is paused")
	}

	executortest.Eventually(t, "one is paused", func() bool { return value(n.metrics.paused) == 1 })

	if got := value(n.metrics.paused); got != 1 || n.Running() != 1 || n.Free() != 3 {
		t.Errorf("%v are paused, %d run, %d slots are free: a paused attempt keeps its slot", got, n.Running(), n.Free())
	}

	n.change("pauses", letGoOn)
	a = n.is("pauses", task.Running)
	if !a.PausedAt.IsZero() || a.PausedMS < 30 || a.PausedBy != nil || !a.ResumedBy.Is("bob") {
		t.Errorf("got %+v", a)
	}

	executortest.Eventually(t, "resumed, it goes on", func() bool { return !n.still("pauses") })
	first := a.PausedMS
	n.change("pauses", letGoOn) // resuming twice has the same effect as once
	n.change("pauses", pause)

	if a = n.is("pauses", task.Paused); a.PausedMS != first {
		t.Errorf("the sum before is %d, want %d", a.PausedMS, first)
	}

	// A rejoin adopts the paused attempt.
	fence := n.join()
	executortest.Eventually(t, "it is adopted", func() bool { _, mod := n.inbox("pauses"); return mod > fence.CreateRevision })

	if a, _ := n.inbox("pauses"); a.State != task.Paused || a.PausedAt.IsZero() || !n.still("pauses") {
		t.Errorf("adopted as %+v", a)
	}

	if all := n.AttemptStatuses(); len(all) != 1 || !all[0].Paused {
		t.Errorf("the node says of its attempts %+v", all)
	}

	n.change("pauses", letGoOn)
	n.touch("go")
	var w *task.Waiting
	executortest.Eventually(t, "the next attempt waits", func() bool { w = n.waits("pauses"); return w != nil })

	if w.Attempt != 2 || w.PausedMS != 0 || w.PausedBy != nil || w.Attempts[0].State != task.Failed {
		t.Errorf("the next attempt is %+v", w)
	}

	executortest.Eventually(t, "none is paused", func() bool { return value(n.metrics.paused) == 0 && n.Free() == 4 })
}

// wroteLine waits until the program of an attempt has written a line to a file. The existence of the file is not
// enough: a shell that is stopped before it has written does not write.
func (n *node) wroteLine(name string) {
	n.t.Helper()
	executortest.Eventually(n.t, "a line in "+name, func() bool {
		b, _ := os.ReadFile(n.file(name))
		return bytes.HasSuffix(b, []byte("\n"))
	})
}

// Verifies: G53
func TestPause_WhatEndsAPausedAttempt(t *testing.T) {
	t.Parallel()
	n := newNode(t, newEtcd(t), func(c *Config) { c.Slots = 10 })
	n.join()
	trapped := "trap 'echo said; exit 5' INT; " + counts
	paused := func(run, line string, change ...func(*task.Assigned)) {
		t.Helper()
		n.assign(run, fmt.Sprintf(line, run), change...)
		n.wroteLine(run)
		n.change(run, pause)
		n.is(run, task.Paused)

		// The record counts pauses in milliseconds, so the pause has to last for at least one.
		a, _ := n.inbox(run)
		executortest.Eventually(t, "a pause of a millisecond", func() bool { return time.Since(a.PausedAt.Time) > 2*time.Millisecond })
	}

	// It handles the signal and may use its grace period.
	paused("cancel", trapped, func(a *task.Assigned) { a.KillSignal = "SIGINT" })
	n.change("cancel", cancelled)

	if r := n.ended("cancel"); r.State != task.Cancelled || r.ExitCode == nil || *r.ExitCode != 5 || r.OutputTail != "said\n" ||
		r.PausedMS == 0 || !r.PausedAt.IsZero() || r.PausedBy != nil {
		t.Errorf("cancelled: %+v", r)
	}

	// A process outside the group is paused and killed, too.
	paused("left", "setsid sh -c 'echo $$ >>@pid; while :; do echo >>@%s; sleep 0.002; done' & wait")

	if !n.still("left") {
		t.Error("a process outside the group continues")
	}

	pid := n.began("pid")
	n.change("left", cancelled)

	if n.ended("left"); executortest.Alive(pid) {
		t.Error("what left the group is left")
	}

	// The process has stopped itself before it is paused.
	paused("stopped", "echo $$ >@%s; kill -STOP $$")
	n.change("stopped", cancelled)

	if r := n.ended("stopped"); r.State != task.Cancelled || r.Signal != "SIGTERM" {
		t.Errorf("stopped by itself: %+v", r)
	}

	// The process is killed from outside, together with a child that it has left.
	paused("killed", "(while :; do sleep 0.002; done) & echo $! >@child; echo $$ >@%s; wait")

	if err := syscall.Kill(n.began("killed"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}

	if r := n.ended("killed"); r.State != task.Failed || r.Signal != "SIGKILL" || r.PausedMS == 0 || executortest.Alive(n.began("child")) {
		t.Errorf("killed: %+v", r)
	}

	// Its record is gone, because another node has decided its outcome.
	paused("gone", "echo $$ >@%s; while :; do sleep 0.002; done")
	pid = n.began("gone")

	if _, err := n.etcd.Delete(t.Context(), n.keys.Run("n1", ref, "gone")); err != nil {
		t.Fatal(err)
	}

	executortest.Eventually(t, "the process is dead", func() bool { return !executortest.Alive(pid) })

	// A drain waits for it, and kills it at the drain timeout.
	paused("drain", counts)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()

	if err := n.Drain(ctx); err != nil {
		t.Error(err)
	}

	if r := n.ended("drain"); r.State != task.Failed || r.Reason != task.ReasonShutdown {
		t.Errorf("drained: %+v", r)
	}
}

// A node that has been silent for too long kills its paused attempts.
func TestPause_OfASilentNode(t *testing.T) {
	t.Parallel()
	n := newNode(t, newEtcd(t))
	n.join()
	n.assign("silent", "echo $$ >@silent; exec sleep 300", lostAfter(40*time.Second))
	pid := n.began("silent")
	n.change("silent", pause)
	n.is("silent", task.Paused)
	past := time.Now().Add(-time.Hour)
	n.renewed.Store(&past)
	n.join()

	if r := n.ended("silent"); r.State != task.Lost || executortest.Alive(pid) {
		t.Errorf("got %+v", r)
	}
}

func TestPause_BeforeTheStart(t *testing.T) {
	t.Parallel()
	n := newNode(t, newEtcd(t), func(c *Config) { c.Slots = 1 })
	n.join()
	n.assign("held", "echo $$ >@held", pause)
	n.assign("late", "echo $$ >@late", pause, func(a *task.Assigned) { a.StartBefore = task.At(time.Now().Add(700 * time.Millisecond)) })
	n.assign("other", "echo $$ >@other") // takes the slot, because paused attempts that have not started claim none
	n.ended("other")

	if r := n.ended("late"); r.State != task.Missed || n.exists("late") {
		t.Errorf("past its start deadline: %+v", r)
	}

	executortest.Eventually(t, "the slot is free, which the others do not claim", func() bool { return n.Free() == 1 })

	if a, _ := n.inbox("held"); n.exists("held") || a.State != task.Dispatched {
		t.Errorf("held, it is %+v", a)
	}

	n.change("held", letGoOn)

	if r := n.ended("held"); r.State != task.Succeeded || r.PausedMS != 0 || r.PausedBy != nil {
		t.Errorf("got %+v", r)
	}

	n.assign("cancel", "echo $$ >@cancel", pause)
	n.change("cancel", cancelled)

	if r := n.ended("cancel"); r.State != task.Cancelled || n.exists("cancel") {
		t.Errorf("got %+v", r)
	}

	n.assign("back", "echo $$ >@back", pause)
	n.sees("back", "waits", func(*attempt) bool { return true })

	if err := n.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}

	if w := n.waits("back"); w == nil || w.Reason != task.ReasonHandBack || w.PausedBy != nil {
		t.Errorf("handed back: %+v", w)
	}
}

// Pauses, resumptions and the end of an attempt in random order. In the end, the attempt is in the state that was
// requested last, or it has ended.
//
// Verifies: G53
func TestPause_ConvergesOnWhatWasAskedForLast(t *testing.T) {
	t.Parallel()
	n := newNode(t, newEtcd(t))
	n.join()

	for round := range 6 {
		run, ends := fmt.Sprint("turns", round), round%2 == 1
		line := fmt.Sprintf(counts, run)
		if ends {
			line = fmt.Sprintf("echo >>@%s; sleep 0.0%d", run, rand.IntN(6))
		}

		n.assign(run, line)
		n.wroteLine(run)

		last := false
		for range 4 + rand.IntN(4) {
			a, mod := n.inbox(run)
			if a == nil {
				break
			}

			if last = rand.IntN(2) == 0; last {
				pause(a)
			} else {
				letGoOn(a)
			}

			if !n.putIf(n.keys.Run("n1", ref, run), mod, a) {
				last = !last // nothing was requested
				if now, _ := n.inbox(run); now != nil {
					last = now.PauseRequested
				}
			}

			time.Sleep(time.Duration(rand.IntN(8)) * time.Millisecond)
		}

		if a, _ := n.inbox(run); a != nil && !last {
			executortest.Eventually(t, run+" goes on, or has ended", func() bool {
				a, _ := n.inbox(run)
				return a == nil || a.State == task.Running && !n.still(run)
			})
		} else if a != nil {
			executortest.Eventually(t, run+" stands still, or has ended", func() bool {
				a, _ := n.inbox(run)
				return a == nil || a.State == task.Paused && n.still(run)
			})

			executortest.Eventually(t, run+" is let go on, or has ended", func() bool {
				a, mod := n.inbox(run)
				if a == nil {
					return true
				}

				letGoOn(a)

				return n.putIf(n.keys.Run("n1", ref, run), mod, a)
			})
		}

		if !ends {
			n.change(run, cancelled)
		}

		n.ended(run)
	}
}

func TestPause_ThatCannotBeSaysSo(t *testing.T) {
	t.Parallel()
	broken := true
	n := newNode(t, newEtcd(t), func(c *Config) {
		c.freeze = func(tr *proctree.Tree) error {
			err := freezePatiently(tr)
			if broken {
				return errors.Join(err, errors.New("freeze: 1 processes did not stop"))
			}
			return err
		}
	})

	n.join()
	n.assign("unpausable", fmt.Sprintf(counts, "unpausable"))
	n.wroteLine("unpausable")
	n.change("unpausable", pause)
	var a *task.Assigned
	executortest.Eventually(t, "the record says so", func() bool { a, _ = n.inbox("unpausable"); return !a.PauseRequested })

	if a.State != task.Running || !strings.Contains(a.Message, "could not be paused: freeze: 1 processes") || a.PausedBy != nil || a.ResumedBy != nil {
		t.Errorf("got %+v", a)
	}

	executortest.Eventually(t, "it goes on", func() bool { return !n.still("unpausable") })
	broken = false // its goroutine is waiting
	n.change("unpausable", pause)
	n.is("unpausable", task.Paused)
	n.change("unpausable", cancelled)
	n.ended("unpausable")
}
