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
	checkEvery   = 250 * time.Millisecond // between looks at deadlines
	readPause    = 10 * time.Millisecond  // between reads: what is in the pipe is safe, and to wake for each message is dear
	killLimit    = time.Minute            // for all processes to be gone
	clearLimit   = 10 * time.Second       // to say so
	workdirLimit = 5 * time.Second        // to remove their directories
)

// Serve is the body of the guardian: a process that outlives the daemon
// just long enough to kill what it left.
//
//	hello ──lock taken──▶ watching ──bye──▶ done
//	                         │
//	                         └──end of input──▶ killing ──none left──▶ clear ──▶ done
//
// It reads the daemon's messages from in and says on out when it is ready. When in
// ends without a bye the daemon is dead: Serve kills every process group
// that it knows of and every process that carries the mark of a known attempt or
// is in a control group of one, makes sure that none is left, removes these
// groups, and calls clear, which is to say so in etcd;
// clear is called again until it succeeds, for some ten seconds, but not at all
// if the daemon died before this guardian knew of every attempt. While the
// daemon is frozen, it kills attempts at their deadline, after which they are declared lost.
//
// It holds a lock below the data directory for as long as it lives, and ignores
// the signals by which terminals and service managers end a daemon.
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

	g := server{roots: hello.Groups, log: cmp.Or(log, zap.NewNop()), lock: lock, watch: newWatchList(), warned: map[uint64]bool{}}
	if dead := g.listen(ctx, lines); !dead {
		return g.kill(ctx, func(Attempt) bool { return true }) // a bye with attempts alive: they end, too
	}

	g.log.Warn("the daemon is dead", zap.String("instance", hello.Instance), zap.Int("attempts", len(g.watch.attempts)))

	if err := g.kill(ctx, func(Attempt) bool { return true }); err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	if !g.informed {
		return errors.New("guardian: the daemon died before it had told of all attempts: nobody knows whether any is left")
	}

	err = reportCleared(ctx, hello, clear)
	hello.removeWorkdirs(g.log)

	return err
}

type server struct {
	roots    []string // of control groups
	log      *zap.Logger
	lock     *os.File
	watch    watchList
	informed bool            // of all attempts that were there when it came
	warned   map[uint64]bool // killed at their deadline
}

// setInformed notes that it knows all, and leaves its number in the lock file for
// people who look.
func (g *server) setInformed() {
	g.informed = true
	err := g.lock.Truncate(0)
	if err == nil {
		_, err = g.lock.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	}

	if err != nil {
		g.log.Warn("cannot write to the lock file", zap.Error(err))
	}
}

// readLine reads one line.
func readLine(r *bufio.Reader, v any) error {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

// listen keeps watch until the daemon says bye (false) or is dead (true).
func (g *server) listen(ctx context.Context, r *bufio.Reader) (dead bool) {
	words := make(chan Message, 64)
	go func() { // ends with the process: nothing else ends a read
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

			g.watch.apply(x)

			if x.All {
				g.setInformed()
			}
		case <-look.C:
			g.killOverdue(ctx)
		}
	}
}

// killOverdue kills what is about to be declared lost. A daemon that is not frozen has
// done so before.
func (g *server) killOverdue(ctx context.Context) {
	now := proctree.BootTime()
	due := func(a Attempt) bool { return !g.warned[a.ID] && g.watch.overdue(a, now) }
	if h, n := g.watch.killSet(due); n > 0 {
		g.log.Warn("the daemon is silent: killing its attempts before they are declared lost", zap.Int("attempts", n))
		ctx, cancel := context.WithTimeout(ctx, proctree.KillLimit)
		defer cancel()

		if _, err := h.KillAll(ctx.Done()); err != nil {
			g.log.Error("attempts do not end", zap.Error(err))
			return // and tried again
		}

		for id, a := range g.watch.attempts {
			if g.watch.overdue(a, now) {
				g.warned[id] = true
			}
		}
	}

	for id := range g.warned {
		if _, ok := g.watch.attempts[id]; !ok {
			delete(g.warned, id)
		}
	}
}

// kill kills all attempts that match, and returns nil when none is left.
func (g *server) kill(ctx context.Context, match func(Attempt) bool) error {
	h, n := g.watch.killSet(match)
	h.KillGroups()

	if n > 0 {
		ctx, cancel := context.WithTimeout(ctx, killLimit)
		defer cancel()

		killed, err := h.KillAll(ctx.Done())
		g.log.Info("killed the attempts", zap.Int("attempts", n), zap.Int("processes", killed), zap.Error(err))
		if err != nil {
			return err
		}
	}

	return cgroup.Remove(g.roots, killLimit)
}

// removeWorkdirs removes what the dead daemon's attempts had on disk. What takes longer
// than workdirLimit is left to the daemon's next start, which waits for the guardian.
func (h Hello) removeWorkdirs(log *zap.Logger) {
	if h.Workdirs == "" {
		return
	}

	late := make(chan struct{})
	defer time.AfterFunc(workdirLimit, func() { close(late) }).Stop()

	if err := workdir.RemoveAbandoned(h.Workdirs, h.Dir, late); err != nil {
		log.Warn("directories of attempts are left", zap.String("path", h.Workdirs), zap.Error(err))
	}
}

func reportCleared(ctx context.Context, hello Hello, clear func(context.Context, Hello) error) error {
	ctx, cancel := context.WithTimeout(ctx, clearLimit)
	defer cancel()
	for {
		err := clear(ctx, hello)
		if err == nil {
			return nil
		}

		if !clock.Sleep(ctx, 200*time.Millisecond) {
			return fmt.Errorf("guardian: say that instance %s is cleared: %w", hello.Instance, err)
		}
	}
}

// WaitForExit returns when no guardian of this data directory is left. A
// restarted daemon calls it, under its lock of the directory, before it says
// anything about its former instance.
func WaitForExit(ctx context.Context, dir string) error {
	lock, err := takeLock(ctx, dir)
	if err != nil {
		return fmt.Errorf("wait for the former guardian: %w", err)
	}
	return lock.Close()
}

// takeLock takes the guardian's lock, and waits for it until ctx ends.
func takeLock(ctx context.Context, dir string) (*os.File, error) {
	path := filepath.Join(dir, "guardian.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}

	for {
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
