package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/cgroup"
)

// procRoot is where the kernel shows processes.
const procRoot = "/proc"

// tick is the unit of start times in /proc: USER_HZ is 100 on every Linux that
// Go runs on.
const tick = 10 * time.Millisecond

// stat is what /proc/<pid>/stat says.
type stat struct {
	pid, parent, pgrp int
	state             byte
	flags             uint64        // of the kernel
	start             time.Duration // since boot, to the tick
}

func (s stat) dead() bool { return s.state == 'Z' || s.state == 'X' }

// forkNoExec is PF_FORKNOEXEC, which the kernel clears when a process executes a program
// and then keeps, until the process is reaped. Process accounting (acct(5), AFORK) has
// told it since Linux 2.
const forkNoExec = 0x40

// neverExecuted reports whether a child that has not been reaped has not executed a
// program, and did not before it died.
func neverExecuted(pid int) bool {
	st, err := readStat(pid)
	return err == nil && st.flags&forkNoExec != 0
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile(procRoot + "/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	return parseStat(pid, b)
}

// parseStat reads fields from behind the last ')': the program's name may
// contain anything.
func parseStat(pid int, b []byte) (stat, error) {
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return stat{}, fmt.Errorf("stat of process %d: %d fields", pid, len(f))
	}
	parent, err0 := strconv.Atoi(string(f[1]))
	pgrp, err1 := strconv.Atoi(string(f[2]))
	start, err2 := strconv.ParseInt(string(f[19]), 10, 64)
	flags, err3 := strconv.ParseUint(string(f[6]), 10, 64)
	return stat{pid: pid, parent: parent, pgrp: pgrp, state: f[0][0], flags: flags, start: time.Duration(start) * tick}, errors.Join(err0, err1, err2, err3)
}

// processes lists all process ids.
func processes() ([]int, error) {
	d, err := os.Open(procRoot)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	pids := make([]int, 0, len(names))
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// Leftover is an attempt that may have left processes behind. Namespace and
// Task may be empty: then the run's id and the token alone decide.
type Leftover struct {
	Namespace string
	Task      string
	RunID     string
	Token     int64
}

// birth is when a process group's leader was started, at the earliest and the
// latest, on CLOCK_BOOTTIME: it tells the group from a later one of that number.
type birth struct{ from, to time.Duration }

func (b birth) fits(start time.Duration) bool {
	return start >= b.from.Truncate(tick)-tick && start <= b.to+tick
}

// hunt is a set of attempts of which no process may be left: those of their
// control groups, those of their process groups, and those that carry the
// attempt's mark in their environment. Without a control group, a process that
// does both, leave the group and wipe the environment, is not found.
type hunt struct {
	cgroups []string
	groups  map[int]birth
	marks   map[string][]Leftover // by run id
}

func (h *hunt) addMark(l Leftover) {
	if h.marks == nil {
		h.marks = map[string][]Leftover{}
	}
	h.marks[l.RunID] = append(h.marks[l.RunID], l)
}

func (h *hunt) addGroup(pgid int, b birth) {
	if h.groups == nil {
		h.groups = map[int]birth{}
	}
	h.groups[pgid] = b
}

// run kills until two looks in a row find nothing, or until done is closed, and
// returns how many processes it killed. An error means that some may be left.
func (h *hunt) run(done <-chan struct{}) (killed int, err error) {
	seen := map[int]bool{}
	for clean, pause := 0, time.Millisecond; ; {
		found, err := h.pass(seen)
		if err != nil {
			return len(seen), err
		}
		if found > 0 {
			clean = 0
		} else if clean++; clean == 2 {
			return len(seen), nil
		}
		select {
		case <-done:
			return len(seen), fmt.Errorf("%d processes do not end", found)
		case <-time.After(pause):
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// pass kills what it finds once, and returns how many were alive.
func (h *hunt) pass(seen map[int]bool) (int, error) {
	pids, err := processes()
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	self := os.Getpid()
	found := 0
	for _, dir := range h.cgroups {
		for _, pid := range cgroup.Kill(dir) {
			seen[pid] = true
			found++
		}
	}
	for _, pid := range pids {
		if pid == self {
			continue
		}
		st, err := readStat(pid)
		if err != nil || st.dead() || !h.wanted(st) {
			continue
		}
		found++
		if signalSame(st, unix.SIGKILL) {
			seen[pid] = true
		}
	}
	return found, nil
}

func (h *hunt) wanted(st stat) bool { return h.inGroup(st) || h.marked(st.pid) }

// inGroup reports whether a process belongs to one of the groups. If the
// number now belongs to another leader, the group is a stranger's.
func (h *hunt) inGroup(st stat) bool {
	b, ok := h.groups[st.pgrp]
	if !ok {
		return false
	}
	if st.pid == st.pgrp {
		return b.fits(st.start)
	}
	if leader, err := readStat(st.pgrp); err == nil {
		return b.fits(leader.start)
	}
	return st.start >= b.from.Truncate(tick)-tick
}

// The variables by which a process tells which attempt it belongs to.
const (
	envTask      = "CARILLON_TASK"
	envNamespace = "CARILLON_NAMESPACE"
	envRunID     = "CARILLON_RUN_ID"
	envToken     = "CARILLON_FENCING_TOKEN"
)

// marked reports whether a process carries the mark of an attempt.
func (h *hunt) marked(pid int) bool {
	if len(h.marks) == 0 {
		return false
	}
	env, err := os.ReadFile(procRoot + "/" + strconv.Itoa(pid) + "/environ")
	if err != nil || !bytes.Contains(env, []byte(envRunID+"=")) {
		return false
	}
	get := func(name string) string {
		for entry := range bytes.SplitSeq(env, []byte{0}) {
			if k, v, ok := bytes.Cut(entry, []byte{'='}); ok && string(k) == name {
				return string(v)
			}
		}
		return ""
	}
	for _, l := range h.marks[get(envRunID)] {
		if get(envToken) == strconv.FormatInt(l.Token, 10) &&
			(l.Task == "" || get(envTask) == l.Task) && (l.Namespace == "" || get(envNamespace) == l.Namespace) {
			return true
		}
	}
	return false
}

// KillLeftovers kills every process that carries the run id and the token of
// one of these attempts in its environment, and returns when none is left. A
// restarted daemon calls it for what its inbox says of its former instance.
// After nil, and WaitForGuardian, that instance may be said to be cleared.
func KillLeftovers(ctx context.Context, attempts []Leftover) (killed int, err error) {
	if len(attempts) == 0 {
		return 0, nil
	}
	var h hunt
	for _, l := range attempts {
		h.addMark(l)
	}
	if killed, err = h.run(ctx.Done()); err != nil {
		return killed, fmt.Errorf("kill leftovers: %w", err)
	}
	return killed, nil
}

// groupAlive reports whether a process group has members that are not zombies.
func groupAlive(pgid int) bool {
	if unix.Kill(-pgid, 0) == unix.ESRCH {
		return false
	}
	pids, err := processes()
	if err != nil {
		return true
	}
	for _, pid := range pids {
		if st, err := readStat(pid); err == nil && st.pgrp == pgid && !st.dead() {
			return true
		}
	}
	return false
}

// sweeper finds processes by the marks in their environment. A look at all
// processes serves everybody who asked for one meanwhile.
type sweeper struct {
	turn sync.Mutex // held while looking
	mu   sync.Mutex
	next *sweep
}

type sweep struct {
	hunt   hunt
	done   bool
	killed int
	err    error
}

func (s *sweeper) clean(l Leftover) (int, error) {
	s.mu.Lock()
	if s.next == nil {
		s.next = &sweep{}
	}
	b := s.next
	b.hunt.addMark(l)
	s.mu.Unlock()

	s.turn.Lock()
	defer s.turn.Unlock()
	if b.done {
		return 0, b.err // told to the first
	}
	s.mu.Lock()
	s.next = nil
	s.mu.Unlock()
	late := make(chan struct{})
	defer time.AfterFunc(unkillable, func() { close(late) }).Stop()
	b.killed, b.err = b.hunt.run(late)
	b.done = true
	return b.killed, b.err
}
