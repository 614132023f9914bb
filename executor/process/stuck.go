package process

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/task"
)

// Starts can hang, because the user of an attempt or a file system can delay them forever. The
// program's file may have a lease on it. The program, the working directory or an env file
// may be on a FUSE file system whose server never answers, or on a network file system that is
// unavailable. Each start waits in its own goroutine for a bounded time, and nothing else
// waits for it.
const (
	startQuick = 100 * time.Millisecond // waited for without a goroutine; most programs execute within this time
	startSlow  = 5 * time.Second        // after this time a start counts as stuck
	startLimit = 30 * time.Second       // time limit for each step of a start that can hang
)

// ManyStuck is the number of stuck starts at which a node stops taking runs. Each of them keeps a goroutine, often a
// thread, and a process, and their cause is probably on this host.
const ManyStuck = 8

// errStuck means that a step of a start has not ended in time. No instruction of the attempt's
// program has been executed, and none will be.
var errStuck = errors.New("the start hangs")

// errStartTimeout means that the attempt's timeout came before it had started.
var errStartTimeout = errors.New("it had not started by that time")

// stuckStarts counts starts that hang. Its methods may be called from any goroutine.
type stuckStarts struct {
	slow, limit time.Duration // startSlow and startLimit, except in tests
	killed      time.Duration // how long a process may take to end after SIGKILL
	changed     func()        // called when the count has changed; it does not block
	total       prometheus.Counter
	count       atomic.Int64 // the starts that are stuck now
}

// newStuckStarts returns a counter. changed may be nil.
func newStuckStarts(changed func()) *stuckStarts {
	if changed == nil {
		changed = func() {}
	}
	return &stuckStarts{slow: startSlow, limit: startLimit, killed: proctree.KillLimit, changed: changed, total: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "carillon_spawns_stuck_total", Help: "Attempts whose start was given up because the program had not started after 30 s."})}
}

// addAndReport changes the count and reports it.
func (s *stuckStarts) addAndReport(n int64) {
	s.count.Add(n)
	s.changed()
}

// awaitStart returns nil when done is closed. It returns an error when off is closed, which calls
// the start off, or when the start has taken too long since began. After an error, the start
// counts as stuck until done is closed.
func (s *stuckStarts) awaitStart(done, off <-chan struct{}, began time.Time, timeout time.Duration) (err error) {
	slow := time.NewTimer(time.Until(began.Add(s.slow)))
	defer slow.Stop()

	limit := s.limit
	if timeout > 0 {
		limit = min(limit, timeout)
	}

	late := time.NewTimer(time.Until(began.Add(limit)))
	defer late.Stop()

	counted := false
	for err == nil {
		select {
		case <-done:
			if counted {
				s.addAndReport(-1)
			}
			return nil
		case <-slow.C:
			counted = true
			s.addAndReport(1)
		case <-off:
			err = errCalledOff
		case <-late.C:
			if err = errStuck; timeout > 0 && timeout <= s.limit {
				err = fmt.Errorf("ran longer than %s: %w", task.Duration(timeout), errStartTimeout)
			}
		}
	}

	// The caller gives up, but what it waited for still exists. It counts as stuck until it ends.
	if !counted {
		s.addAndReport(1)
	}

	if errors.Is(err, errStuck) {
		s.total.Inc()
	}

	go func() {
		<-done
		s.addAndReport(-1)
	}()

	return err
}

// runWithTimeout returns what f returns, or an error of awaitStart if f does not return in time. In that
// case f keeps running and keeps its goroutine and its thread. f must not use anything that the caller
// changes or releases afterwards.
func runWithTimeout[T any](s *stuckStarts, off <-chan struct{}, timeout time.Duration, step string, f func() (T, error)) (v T, err error) {
	done := make(chan struct{})
	var value T
	var failed error
	go func() {
		defer close(done)
		value, failed = f()
	}()

	if err = s.awaitStart(done, off, time.Now(), timeout); err == nil {
		return value, failed
	}

	if errors.Is(err, errStuck) {
		err = fmt.Errorf("%w: %s took more than %s; does a file system not respond?", err, step, s.limit)
	}

	return v, err
}

// awaitExecution returns nil when the process has executed its program. After an error, no
// instruction of the program has been executed and none will be; the process has ended when
// gone is closed.
func (p *runningProcess) awaitExecution(timeout time.Duration, o *Orders) (gone <-chan struct{}, err error) {
	// A program that executes within startQuick, as nearly all do, costs no goroutine and no timer.
	ended := make(chan struct{})
	err = p.created.AwaitExec(time.Now().Add(startQuick))
	if err == nil {
		return nil, nil
	}

	// The start failed: the process has exited without executing its program.
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		p.reapUnexecuted()
		close(ended)
		return ended, err
	}

	decided := make(chan struct{})
	var failed error
	go func() {
		defer close(decided)
		failed = p.created.AwaitExec(time.Time{})
	}()

	if err = p.stuck.awaitStart(decided, o.given, p.started, timeout); err == nil {
		if err = failed; err != nil {
			p.reapUnexecuted()
			close(ended)
		}
		return ended, err
	}

	// With a pending SIGKILL, the process executes no instruction of its program, even if it
	// is in the middle of an execve that succeeds. If it had executed the program before the
	// signal, the attempt has run and must not be reported as not started (G9).
	_ = unix.Kill(p.pid, unix.SIGKILL)

	if !proctree.NeverExecuted(p.pid) {
		// It had executed. The caller continues as if it had started, and the kill gives the outcome its reason.
		<-decided
		p.killedAtStart = killedAtStart(err, o)
		return nil, nil
	}

	if errors.Is(err, errStuck) {
		err = fmt.Errorf("%w: %s was not executed within %s; does its file have a lease, or does a file system not respond?",
			err, task.Quote(p.program), p.stuck.limit)
	}

	go func() {
		defer close(ended)
		<-decided
		p.reapUnexecuted()
	}()

	// Usually the process ends at once. If it sleeps in the kernel and cannot be killed, it is left to the goroutine.
	select {
	case <-ended:
	case <-time.After(p.stuck.killed):
		p.log.Error("a process that has not yet executed its program survived SIGKILL", zap.Int("pid", p.pid), zap.String("run", p.tree.Mark.RunID))
	}

	return ended, err
}

// killedAtStart returns the order that killed an attempt just as it started.
func killedAtStart(err error, o *Orders) (k Kill) {
	if errors.Is(err, errStartTimeout) {
		return Kill{Cause: causeTimeout}
	}

	select {
	case k = <-o.Killed():
	default:
	}

	return k
}

// reapUnexecuted waits for and reaps a process that has not executed its program.
func (p *runningProcess) reapUnexecuted() {
	_ = awaitExit(p.pid, nil)
	p.orphans.Lock()
	_, _, _ = reapProcess(p.pid)
	p.orphans.Reaped(p.pid)
	p.orphans.Unlock()

	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
	}
}
