package executor

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// freezing is how long a tree may take to stand still.
const freezing = 2 * time.Second

// tree is all processes of an attempt that has been started. It belongs to the
// goroutine that sees the attempt to its end.
type tree struct {
	pid    int // the main process, and the number of its group
	mark   Leftover
	reaped bool // the main process was: its number may be another's by now
}

// signal sends a signal to every process of the tree's group.
func (t *tree) signal(sig syscall.Signal) {
	if t.holdsNumber() {
		unix.Kill(-t.pid, sig)
	}
}

// kill ends the tree's group at once, frozen or not. It does not wait.
func (t *tree) kill() { t.signal(unix.SIGKILL) }

// freeze has every process of the tree stand still, and returns when all do.
// After an error some may; thaw then.
func (t *tree) freeze() error {
	t.signal(unix.SIGSTOP)
	for deadline := time.Now().Add(freezing); ; time.Sleep(time.Millisecond) {
		// What sleeps in the kernel (the parent of a vfork) stops before it does anything else.
		moving, err := t.each(func(st stat) bool { return !st.still() && st.state != 'D' }, unix.SIGSTOP)
		if err != nil {
			return fmt.Errorf("freeze: %w", err)
		}
		if moving == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("freeze: %d processes do not stand still", moving)
		}
	}
}

// thaw has every process of the tree go on.
func (t *tree) thaw() error {
	t.signal(unix.SIGCONT)
	if _, err := t.each(stat.still, unix.SIGCONT); err != nil {
		return fmt.Errorf("thaw: %w", err)
	}
	return nil
}

// empty reports whether nothing is left of the tree's group but zombies.
func (t *tree) empty() bool { return !groupAlive(t.pid) }

// holdsNumber reports whether the group's number is still this group's: not if
// the leader was reaped and its number is a new process's.
func (t *tree) holdsNumber() bool {
	if t.pid <= 0 {
		return false
	}
	if !t.reaped {
		return true
	}
	_, err := readStat(t.pid)
	return err != nil
}

// each signals the processes of the tree that match, and returns how many did.
func (t *tree) each(match func(stat) bool, sig syscall.Signal) (n int, err error) {
	var h hunt
	h.addMark(t.mark)
	pids, err := processes()
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	own := t.holdsNumber()
	for _, pid := range pids {
		st, err := readStat(pid)
		if err != nil || st.dead() || !match(st) || !(own && st.pgrp == t.pid) && !h.marked(pid) {
			continue
		}
		n++
		signalSame(st, sig)
	}
	return n, nil
}

// still reports whether a process is stopped.
func (s stat) still() bool { return s.state == 'T' || s.state == 't' }

// signalSame makes sure by a pidfd that the process signalled is the one looked at.
func signalSame(st stat, sig syscall.Signal) bool {
	fd, err := unix.PidfdOpen(st.pid, 0)
	if errors.Is(err, unix.ENOSYS) { // before Linux 5.3
		again, err := readStat(st.pid)
		return err == nil && again.start == st.start && unix.Kill(st.pid, sig) == nil
	}
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if again, err := readStat(st.pid); err != nil || again.start != st.start {
		return false
	}
	return unix.PidfdSendSignal(fd, sig, nil, 0) == nil
}

// usage is what the processes of an attempt took.
type usage struct {
	cpu        time.Duration
	memoryPeak int64 // bytes
	read       int64 // bytes from block devices
	written    int64
}

// fd is the cgroup that the main process is to be started in; -1: none.
func (t *tree) fd() int { return -1 }

// stats is what the tree has taken so far.
func (t *tree) stats() usage { return usage{} }
