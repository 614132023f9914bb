package guardian

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/workdir"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/clock"
)

const (
	checkEvery   = 250 * time.Millisecond // interval between checks of the deadlines; small against the guardian's part of the margin (at least 1.2 s)
	readPause    = 10 * time.Millisecond  // pause between reads: messages are safe in the pipe, and a wakeup for each is expensive
	killLimit    = time.Minute            // time limit for all processes to end; after that, nothing is reported as cleared
	clearLimit   = 10 * time.Second       // time limit for clear; without the record, the attempts are lost after lost_after
	workdirLimit = 5 * time.Second        // time limit for removing the working directories
	ownFreeze    = 5 * time.Second        // pause between checks that shows that the guardian itself did not run, because the host was suspended
	wakeLimit    = time.Second            // how long the daemon then has to end its HTTP attempts by itself
)

// Serve runs the guardian, a process that outlives the daemon just long enough to kill what
// the daemon left running.
//
//	hello ──lock taken──▶ watching ──bye──▶ done
//	                         │
//	                         └──end of input──▶ killing ──none left──▶ clear ──▶ done
//
// It reads the daemon's messages from in and reports on out when it is ready. If in ends
// without a bye, the daemon is dead. Serve then kills every process group of a known attempt
// and every process that carries its mark or is in its control group, verifies that none is
// left, removes the control groups, and calls clear, which records this in etcd. It repeats
// clear until it succeeds or clearLimit has passed. It does not call clear if the daemon died
// before this guardian knew of every attempt, because other nodes would then replace attempts
// that may still run (G17). While the daemon is frozen, Serve kills attempts at their deadline,
// before they are declared lost.
//
// Serve holds a lock in the data directory for as long as it runs, and ignores the signals
// with which terminals and service managers stop a daemon.
func Serve(ctx context.Context, in io.Reader, out io.Writer, log *zap.Logger, clear func(context.Context, Hello) error) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGQUIT)
	lines := bufio.NewReaderSize(in, 64<<10)
	var hello Hello
	if err := readLine(lines, &hello); err != nil {
		return fmt.Errorf("guardian: read hello: %w", err)
	}

	lock, err := takeLock(ctx, hello.Dir)
	if err != nil {
		return fmt.Errorf("guardian: %w", err)
	}

	defer lock.Close()

	if _, err := fmt.Fprintln(out, readyAnswer); err != nil {
		return fmt.Errorf("guardian: %w", err)
	}

	g := server{
		roots: hello.Groups, log: cmp.Or(log, zap.NewNop()), lock: lock, daemon: openDaemon(hello.PID),
		watch: newWatchList(), killed: map[uint64]time.Duration{},
	}
	if dead := g.listenUntilDead(ctx, lines); !dead {
		return g.killMatching(ctx, func(Attempt) bool { return true }) // attempts that are still alive at a bye are killed, too
	}

	g.log.Warn("the daemon died", zap.String("instance", hello.Instance), zap.Int("attempts", len(g.watch.attempts)))

	if err := g.killMatching(ctx, func(Attempt) bool { return true }); err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	if !g.informed {
		return errors.New("guardian: the daemon died before it reported all attempts: some may still be running")
	}

	err = reportCleared(ctx, hello, clear)
	hello.removeWorkdirs(g.log)

	return err
}

// server is the state of a running guardian. The goroutine of Serve owns it.
type server struct {
	roots    []string // the directories of the instance's control groups
	log      *zap.Logger
	lock     *os.File       // the lock file in the data directory
	daemon   *daemonProcess // nil: it is dead already, or has not said which process it is
	watch    watchList      // what the daemon has sent
	informed bool           // it knows all attempts that existed when it started
	// killed contains the deadlines at which attempts were killed, so that each is killed and logged once for a deadline.
	// An attempt may have had no process then. Its process starts only after a renewal, which gives it another deadline.
	killed map[uint64]time.Duration

	lastCheck    time.Duration // the time of the latest check; 0: there was none
	patientUntil time.Duration // the daemon is not killed before this time
}

// setInformed notes that the guardian knows all attempts, and writes its process number to the
// lock file for administrators.
func (s *server) setInformed() {
	s.informed = true
	err := s.lock.Truncate(0)
	if err == nil {
		_, err = s.lock.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	}

	if err != nil {
		s.log.Warn("cannot write to the lock file", zap.Error(err))
	}
}

// readLine reads one line and decodes it into v. A line without a line break, which the daemon wrote while it
// died, is an error like the end of the input.
func readLine(r *bufio.Reader, v any) error {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

// listenUntilDead processes messages and kills overdue attempts until the input ends, which means that
// the daemon is dead (true), or until a bye or the end of ctx (false).
func (s *server) listenUntilDead(ctx context.Context, r *bufio.Reader) (dead bool) {
	words := make(chan Message, 64)
	go func() { // ends with the process, because nothing else interrupts a read
		defer close(words)
		for {
			var x Message
			if err := readLine(r, &x); err != nil {
				return
			}

			words <- x

			if r.Buffered() == 0 {
				time.Sleep(readPause)
			}
		}
	}()

	look := time.NewTicker(checkEvery)
	defer look.Stop()

	for {
		select {
		case <-ctx.Done():
			return false
		case x, ok := <-words:
			if !ok {
				return true
			}
			if x.Bye {
				return false
			}

			s.watch.applyMessage(x)

			if x.All {
				s.setInformed()
			}
		case <-look.C:
			now := proctree.BootTime()
			s.killDaemon(now)
			s.killOverdue(ctx, now)
		}
	}
}

// killOverdue kills attempts that may soon be declared lost (G17). A daemon that is not frozen
// has already killed them, because its own deadline is earlier.
func (s *server) killOverdue(ctx context.Context, now time.Duration) {
	due := func(a Attempt) bool {
		deadline, _ := s.watch.deadline(a)
		return s.watch.isOverdue(a, now) && s.killed[a.ID] != deadline
	}

	if h, n := s.watch.killSet(due); n > 0 {
		s.log.Warn("the daemon does not respond; killing its attempts before they are declared lost", zap.Int("attempts", n))
		ctx, cancel := context.WithTimeout(ctx, proctree.KillLimit)
		defer cancel()

		if _, err := h.KillAll(ctx.Done()); err != nil {
			s.log.Error("attempts survived SIGKILL", zap.Error(err))
			return // the next check tries again
		}

		for id, a := range s.watch.attempts {
			if due(a) {
				s.killed[id], _ = s.watch.deadline(a)
			}
		}
	}

	for id := range s.killed {
		if _, ok := s.watch.attempts[id]; !ok {
			delete(s.killed, id)
		}
	}
}

// killDaemon kills the daemon if HTTP attempts are in progress that may soon be declared lost (G17). A daemon that is not
// frozen has already ended them, because its own deadline is earlier. When the daemon is dead, its input ends, and the
// guardian kills what it has left.
//
// After the host was suspended, the daemon and the guardian continue together. The daemon sends nothing more for its
// attempts then, and needs a moment to end them.
func (s *server) killDaemon(now time.Duration) {
	if s.lastCheck > 0 && now-s.lastCheck > ownFreeze {
		s.patientUntil = now + wakeLimit
	}
	s.lastCheck = now

	if s.daemon == nil || now < s.patientUntil || !s.watch.overdueRemote(now) {
		return
	}

	s.log.Warn("the daemon does not respond and has HTTP requests in progress; killing it before they are declared lost", zap.Int("pid", s.daemon.pid))

	if err := s.daemon.kill(); err != nil {
		s.log.Error("cannot kill the daemon", zap.Error(err))
		return // the next check tries again
	}

	s.daemon = nil
}

// killMatching kills all attempts that match and removes the control groups. It returns nil when no process is left.
func (s *server) killMatching(ctx context.Context, match func(Attempt) bool) error {
	h, n := s.watch.killSet(match)
	// First what can be killed without a search. KillAll then finds the rest and verifies that nothing is left.
	h.KillGroups()

	if n > 0 {
		ctx, cancel := context.WithTimeout(ctx, killLimit)
		defer cancel()

		killed, err := h.KillAll(ctx.Done())
		s.log.Info("killed the attempts", zap.Int("attempts", n), zap.Int("processes", killed), zap.Error(err))
		if err != nil {
			return err
		}
	}

	return cgroup.Remove(s.roots, killLimit)
}

// removeWorkdirs removes the working directories of the dead daemon's attempts. It stops after
// workdirLimit and leaves the rest to the daemon's next start, which waits for the guardian.
func (h Hello) removeWorkdirs(log *zap.Logger) {
	if h.Workdirs == "" {
		return
	}

	late := make(chan struct{})
	defer time.AfterFunc(workdirLimit, func() { close(late) }).Stop()

	if err := workdir.RemoveAbandoned(h.Workdirs, h.Dir, late); err != nil {
		log.Warn("attempt directories remain", zap.String("path", h.Workdirs), zap.Error(err))
	}
}

// reportCleared calls clear until it succeeds or clearLimit has passed.
func reportCleared(ctx context.Context, hello Hello, clear func(context.Context, Hello) error) error {
	ctx, cancel := context.WithTimeout(ctx, clearLimit)
	defer cancel()
	for {
		err := clear(ctx, hello)
		if err == nil {
			return nil
		}

		if !clock.Sleep(ctx, 200*time.Millisecond) {
			return fmt.Errorf("guardian: report that instance %s is cleared: %w", hello.Instance, err)
		}
	}
}

// WaitForExit returns when no guardian of this data directory is left. A
// restarted daemon calls it, while it holds its own lock of the directory, before it reports
// its former instance as cleared. It returns an error if ctx ends first.
func WaitForExit(ctx context.Context, dir string) error {
	lock, err := takeLock(ctx, dir)
	if err != nil {
		return fmt.Errorf("wait for the previous guardian: %w", err)
	}
	return lock.Close()
}

// takeLock takes the guardian's lock, and waits for it until ctx ends. The kernel releases the lock when the process
// dies, so a lock never remains.
func takeLock(ctx context.Context, dir string) (*os.File, error) {
	path := filepath.Join(dir, "guardian.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}

	for {
		// A blocking flock could not be interrupted when ctx ends.
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}

		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}

		if !clock.Sleep(ctx, 20*time.Millisecond) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, context.Cause(ctx))
		}
	}
}
