package proctree

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/clock"
)

const (
	reapPause = 100 * time.Millisecond // between looks at children, at least
	reapLook  = 5 * time.Second        // at most
	reapAfter = time.Second            // whose zombie nobody else has reaped by then is an orphan's
)

// Orphans are processes whose parents have ended and that came to the daemon,
// because it asked for that (PR_SET_CHILD_SUBREAPER) or is the first process of a
// container. It reaps them; and where attempts have no control group, it traces
// them back to their attempts, so that they end with these:
//
//   - by the group they are in, or the mark that they carry;
//   - else an orphan is of one of the attempts that ran when it was born, and is
//     told to be of the last of these to end.
//
// A nil *Orphans does nothing. BecomeSubreaper has them come, and Run reaps them.
type Orphans struct {
	self     int
	children func(pid int) []int

	mu    sync.Mutex
	mains map[int]bool    // processes that others reap
	trees map[*Tree]Birth // of attempts that run, whose orphans are traced
	known map[int]*orphan
}

// orphan is a process that came to the daemon.
type orphan struct {
	start time.Duration
	seen  time.Time
	of    []*Tree // of which it may be
}

// NewOrphans is for one executor and its guardian.
func NewOrphans() *Orphans {
	return &Orphans{self: os.Getpid(), children: childrenOf, mains: map[int]bool{}, trees: map[*Tree]Birth{}, known: map[int]*orphan{}}
}

// BecomeSubreaper has orphans come to this process from now on.
func BecomeSubreaper() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// Lock keeps a process from being taken for an orphan before it is said, by Born,
// that it is none.
func (o *Orphans) Lock() {
	if o != nil {
		o.mu.Lock()
	}
}

// Unlock ends what Lock began.
func (o *Orphans) Unlock() {
	if o != nil {
		o.mu.Unlock()
	}
}

// Born tells of a process that somebody waits for, and of its tree, if orphans of that
// are to be found. It is called between Lock and Unlock, so that none of them comes
// before.
func (o *Orphans) Born(pid int, t *Tree, b Birth) {
	if o == nil {
		return
	}

	o.mains[pid] = true
	if t != nil {
		t.PID = pid
		o.trees[t] = b
	}
}

// Reaped tells that somebody has waited for it: its number may be another's. It is
// called between Lock and Unlock.
func (o *Orphans) Reaped(pid int) {
	if o != nil {
		delete(o.mains, pid)
	}
}

// Traces reports whether the orphans of the attempt with this main process are traced. It is called between Lock and
// Unlock.
func (o *Orphans) Traces(pid int) bool {
	for t := range o.trees {
		if t.PID == pid {
			return true
		}
	}

	return false
}

// Forget tells that an attempt has ended, or that its orphans are found in other ways.
func (o *Orphans) Forget(t *Tree) {
	if o == nil {
		return
	}

	o.mu.Lock()
	defer o.mu.Unlock()

	delete(o.trees, t)
}

// orphansOf are the living orphans of an attempt that is ending. What may as well be
// another's that still runs is left to that.
//
// That there are none takes two looks in a row at which none ended: what a dying one
// leaves behind comes after the children were listed, and while some end the kernel may
// leave others out of that list (proc_pid_task(5), children).
func (o *Orphans) orphansOf(t *Tree) (pids []int) {
	if o == nil {
		return nil
	}

	o.mu.Lock()
	defer o.mu.Unlock()

	for clean := 0; clean < 2 && len(pids) == 0; clean++ {
		if o.scanOrphans(time.Now()) {
			clean = -1
		}
		pids = o.certainOrphansOf(t)
	}

	return pids
}

// certainOrphansOf are the orphans that are known to be of one attempt. mu is held.
func (o *Orphans) certainOrphansOf(t *Tree) (pids []int) {
	for pid, x := range o.known {
		if len(x.of) > 0 && !slices.ContainsFunc(x.of, func(other *Tree) bool { _, runs := o.trees[other]; return runs && other != t }) {
			pids = append(pids, pid)
		}
	}

	return pids
}

// scanOrphans learns what came, and reaps what has ended; it reports whether an attempt's has.
// mu is held.
func (o *Orphans) scanOrphans(now time.Time) (ended bool) {
	children := o.children(o.self)

	for pid := range o.known {
		if !slices.Contains(children, pid) {
			delete(o.known, pid)
		}
	}

	for _, pid := range children {
		if o.mains[pid] {
			continue
		}

		st, err := ReadStat(pid)
		if err != nil {
			delete(o.known, pid)
			continue
		}

		x := o.known[pid]
		if x == nil || x.start != st.Start {
			x = &orphan{start: st.Start, seen: now, of: o.possibleOrigins(st)}
			o.known[pid] = x
		}

		// A child that somebody else of this program waits for is soon gone.
		if st.Dead() && (len(x.of) > 0 || now.Sub(x.seen) >= reapAfter) {
			// It is not reaped if only its first thread has ended.
			if reaped, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); err == nil && reaped == pid {
				delete(o.known, pid)
				ended = ended || len(x.of) > 0
			}
		}
	}

	return ended
}

// possibleOrigins is of which attempts a process may be.
func (o *Orphans) possibleOrigins(st Stat) (of []*Tree) {
	for t, b := range o.trees {
		var h KillSet
		h.AddMark(t.Mark)

		if st.Group == t.PID || h.hasMark(st.PID) {
			return []*Tree{t}
		}

		if st.Start >= b.From.Truncate(clockTick)-clockTick {
			of = append(of, t)
		}
	}

	return of
}

// Run reaps until ctx ends.
func (o *Orphans) Run(ctx context.Context) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)

	for {
		o.mu.Lock()
		o.scanOrphans(time.Now())
		waits := len(o.known) > 0
		o.mu.Unlock()

		pause := reapLook
		if waits {
			pause = reapAfter
		}

		select {
		case <-ctx.Done():
			return
		case <-ended:
		case <-time.After(pause):
		}

		if !clock.Sleep(ctx, reapPause) {
			return
		}
	}
}

// childrenOf lists the children of a process. Orphans come to its first thread,
// as long as that lives, as it does in a Go program.
func childrenOf(pid int) (children []int) {
	p := strconv.Itoa(pid)
	b, err := os.ReadFile(procRoot + "/" + p + "/task/" + p + "/children")
	if err == nil {
		for f := range strings.FieldsSeq(string(b)) {
			if child, err := strconv.Atoi(f); err == nil {
				children = append(children, child)
			}
		}

		return children
	}

	if !errors.Is(err, os.ErrNotExist) {
		return nil
	}

	all, _ := ListPIDs() // a kernel that does not list children; none can be listed, none is
	for _, child := range all {
		if st, err := ReadStat(child); err == nil && st.Parent == pid {
			children = append(children, child)
		}
	}

	return children
}
