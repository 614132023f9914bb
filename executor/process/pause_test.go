package process

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// In virtual time, the timeout fires exactly when the attempt has run for that long, whatever pauses it had.
//
// Verifies: G53
func TestStint_CountsOnlyWhatRan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := newRunClock(began, 10*time.Second)

		for _, still := range []time.Duration{time.Hour, 0, 3 * time.Millisecond, 48 * time.Hour} {
			time.Sleep(2 * time.Second)

			if !s.pause(time.Now()) {
				t.Fatal("it has run too long")
			}

			time.Sleep(still)

			select {
			case <-s.timedOut():
				t.Fatal("the timeout fired during a pause")
			default:
			}

			s.resume(time.Now())
			s.resume(time.Now()) // twice has the same effect as once
		}

		still := 49*time.Hour + 3*time.Millisecond
		<-s.timedOut()

		if ran := time.Since(began) - still; ran != 10*time.Second || s.Sum != still {
			t.Errorf("timed out after running %s, and being paused for %s", ran, s.Sum)
		}

		if s.pause(time.Now()) {
			t.Error("the clock is paused although the timeout has passed")
		}

		time.Sleep(time.Second)

		if sum := s.stop(time.Now()); sum != still+time.Second {
			t.Errorf("it was paused for %s in total", sum)
		}

		free := newRunClock(time.Now(), 0)
		time.Sleep(time.Hour)

		if !free.pause(time.Now()) || free.timedOut() != nil {
			t.Error("what has no timeout timed out")
		}
	})
}

// The timeout of a real process counts only the time that it ran.
func TestPause_TimeoutCountsWhatRan(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, spool.Config{})
	l.freeze = freezePatiently
	a := executortest.Assigned("timeout", &task.Process{Shell: "exec sleep 300"})
	a.Timeout = task.Duration(300 * time.Millisecond)

	prep, err := l.prepareAttempt(a, executortest.NewToken())
	if err != nil {
		t.Fatal(err)
	}

	o, turned, over := NewOrders(), make(chan PauseState, 8), make(chan struct{})
	turn := func(still bool, rest time.Duration) {
		o.SetPaused(still)

		select {
		case <-turned:
			time.Sleep(rest)
		case <-over: // on a busy machine, the attempt may reach its timeout before the pause
		}
	}

	prep.onPause = func(s PauseState) { turned <- s }
	prep.onStarted = func(time.Time) {
		go func() {
			for range 3 {
				turn(true, 200*time.Millisecond)
				turn(false, 20*time.Millisecond)
			}
		}()
	}

	o.SetPaused(true) // request the first pause before the start, because the attempt could reach its timeout before a later one
	r := l.runPrepared(prep, o)
	close(over)

	if ran := r.EndedAt.Sub(r.StartedAt) - r.Paused; r.State != task.TimedOut || r.Paused == 0 || ran < 300*time.Millisecond {
		t.Errorf("%s after running %s and being paused for %s", r.State, ran, r.Paused)
	}
}

// pause pauses all attempts and waits until they are stopped.
func (d *daemon) pause(attempts int) {
	d.t.Helper()

	if err := os.WriteFile(filepath.Join(d.dir, "pause"), nil, 0o600); err != nil {
		d.t.Fatal(err)
	}

	for i := range attempts {
		executortest.Eventually(d.t, "it is paused", func() bool { _, err := os.Stat(filepath.Join(d.dir, fmt.Sprint("paused.", i))); return err == nil })
	}
}

// The guardian kills the paused attempts of a dead daemon.
//
// Verifies: G53
func TestGuardian_KillsWhatIsPaused(t *testing.T) {
	d := startDaemon(t, "echo $$ >@plain; exec sleep 300", "setsid sh -c 'echo $$ >@left; exec sleep 300' & wait")
	pids := []int{d.pid("plain"), d.pid("left")}
	d.pause(len(pids))
	d.kill()
	executortest.Eventually(t, "the instance is cleared", d.cleared)

	for _, pid := range pids {
		if executortest.Alive(pid) {
			t.Errorf("%d is alive although the instance is said to be cleared", pid)
		}
	}
}

// The guardian kills the paused attempts of a frozen daemon at their deadline.
func TestGuardian_KillsWhatAFrozenDaemonHasPaused(t *testing.T) {
	d := startDaemon(t, "echo $$ >@plain; exec sleep 300")
	pid := d.pid("plain")
	d.pause(1)
	d.silence(time.Second)

	if err := d.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}

	executortest.Eventually(t, "it is dead", func() bool { return !executortest.Alive(pid) })

	if d.cleared() {
		t.Error("the instance is said to be cleared")
	}
}
