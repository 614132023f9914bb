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
	reapPause = 100 * time.Millisecond // minimum time between scans of the children
	reapLook  = 5 * time.Second        // maximum time between scans
	reapAfter = time.Second            // a zombie that no other part of the program has reaped by then is an orphan
)

// Orphans tracks processes whose parents have ended and that the kernel has made children of
// the daemon, because it is a subreaper (PR_SET_CHILD_SUBREAPER) or the first process of a
// container. Orphans reaps them. Where attempts have no control group, it also assigns
// each orphan to its attempt, so that it ends with that attempt:
//
//   - by its process group, or by the mark in its environment;
//   - otherwise it may belong to any attempt that ran when it was created, and
//     ends with the last of these.
//
// A nil *Orphans does nothing. BecomeSubreaper makes the daemon adopt orphans, and Run reaps them. The
// methods may be called from any goroutine.
type Orphans struct {
	self     int                 // the daemon's process number
	children func(pid int) []int // lists children; childrenOf except in tests

	mu    sync.Mutex      // Lock and Unlock export it
	mains map[int]bool    // children that other code waits for and reaps
	trees map[*Tree]Birth // running attempts whose orphans are assigned
	known map[int]*orphan // by process number
}

// orphan is a process that the daemon has adopted.
type orphan struct {
	start time.Duration // its start time; tells it from a later process with the same number
	seen  time.Time     // when a scan first found it
	of    []*Tree       // the attempts to which it may belong
}

// NewOrphans returns the Orphans of this process. An executor and the client of its guardian share it.
func NewOrphans() *Orphans {
	return &Orphans{self: os.Getpid(), children: childrenOf, mains: map[int]bool{}, trees: map[*Tree]Birth{}, known: map[int]*orphan{}}
}

// BecomeSubreaper makes the kernel give orphaned descendants to this process from now on.
func BecomeSubreaper() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// Lock stops scans. A caller that forks holds the lock until it has called Born, so that no scan takes
// the new child for an orphan.
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

// Born registers a child that the caller will reap. If t is not nil, orphans of that tree are
// assigned to it, and t.PID is set. The caller has held the lock since before the fork.
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

// Reaped removes a child that the caller has reaped, because its number may be reused. The caller
// holds the lock.
func (o *Orphans) Reaped(pid int) {
	if o != nil {
		delete(o.mains, pid)
	}
}

// Traces reports whether orphans are assigned to the attempt with this main process. The caller holds the lock.
func (o *Orphans) Traces(pid int) bool {
	for t := range o.trees {
		if t.PID == pid {
			return true
		}
	}

	return false
}

// Forget ends the assignment of orphans to an attempt that has ended, or whose processes are found in other ways.
func (o *Orphans) Forget(t *Tree) {
	if o == nil {
		return
	}

	o.mu.Lock()
	defer o.mu.Unlock()

	delete(o.trees, t)
}

// ForgetEnded is Forget for an attempt that has ended. If the attempt has meanwhile become the last one to which some orphan may
// belong, it forgets nothing and returns false. The caller then ends these orphans first.
func (o *Orphans) ForgetEnded(t *Tree) bool {
	if o == nil {
		return true
	}

	o.mu.Lock()
	defer o.mu.Unlock()

	// Another attempt that ends at the same time finds the orphans either now or when it is forgotten itself.
	if _, assigned := o.trees[t]; assigned && len(o.findOrphansOf(t)) > 0 {
		return false
	}
	delete(o.trees, t)

	return true
}

// orphansOf returns the living orphans of an attempt that is ending. An orphan that may
// also belong to another running attempt is not among them; it ends with that attempt.
//
// An empty result is certain only after two scans in a row in which no orphan had ended: children of a
// dying orphan are adopted after the list of children was read, and while children end, the kernel may
// omit others from that list (proc_pid_task(5), children).
func (o *Orphans) orphansOf(t *Tree) (pids []int) {
	if o == nil {
		return nil
	}

	o.mu.Lock()
	defer o.mu.Unlock()

	return o.findOrphansOf(t)
}

// findOrphansOf is orphansOf for a caller that holds mu.
func (o *Orphans) findOrphansOf(t *Tree) (pids []int) {
	for clean := 0; clean < 2 && len(pids) == 0; clean++ {
		if o.scanOrphans(time.Now()) {
			// The increment makes it 0 again.
			clean = -1
		}
		pids = o.certainOrphansOf(t)
	}

	return pids
}

// certainOrphansOf returns the orphans that can belong to no other running attempt than t. An orphan whose attempts have
// all been forgotten is returned for every t, so that it ends with the next attempt. The caller holds mu.
func (o *Orphans) certainOrphansOf(t *Tree) (pids []int) {
	for pid, x := range o.known {
		if len(x.of) > 0 && !slices.ContainsFunc(x.of, func(other *Tree) bool { _, runs := o.trees[other]; return runs && other != t }) {
			pids = append(pids, pid)
		}
	}

	return pids
}

// scanOrphans updates o.known from the list of children and reaps those that have ended. It reports whether it reaped
// an orphan of an attempt. The caller holds mu.
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

		// Other code of this program, such as os/exec, may have started this child and reap it. It does that
		// within reapAfter. A child that may belong to an attempt is an orphan for certain.
		if st.Dead() && (len(x.of) > 0 || now.Sub(x.seen) >= reapAfter) {
			// If only its first thread has ended, it looks dead but is not reaped.
			if reaped, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); err == nil && reaped == pid {
				delete(o.known, pid)
				ended = ended || len(x.of) > 0
			}
		}
	}

	return ended
}

// possibleOrigins returns the attempts to which a process may belong: one if its process group or its mark says so,
// otherwise all that were started before it.
func (o *Orphans) possibleOrigins(st Stat) (of []*Tree) {
	if len(o.trees) == 0 { // as on a host with control groups
		return nil
	}
	env := new(KillSet).environOf(st.PID)

	for t, b := range o.trees {
		var h KillSet
		h.AddMark(t.Mark)

		if st.Group == t.PID || h.isMarked(env) {
			return []*Tree{t}
		}

		if st.Start >= b.From.Truncate(clockTick)-clockTick {
			of = append(of, t)
		}
	}

	return of
}

// Run reaps orphans until ctx ends. It scans after each SIGCHLD, and at intervals in case one was missed.
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

// childrenOf lists the children of a process. The kernel gives orphans to its first thread
// as long as that thread lives, which is always the case in a Go program.
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

	// The kernel does not list children. If processes cannot be listed either, there is nothing to return.
	all, _ := ListPIDs()
	for _, child := range all {
		if st, err := ReadStat(child); err == nil && st.Parent == pid {
			children = append(children, child)
		}
	}

	return children
}
