package proctree

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/cgroup"
)

// freezeTimeout is how long a tree may take to stand still.
const freezeTimeout = 2 * time.Second

// Tree is all processes of an attempt that has been started. It belongs to the
// goroutine that sees the attempt to its end.
//
// With a control group they are what is in that. Without one they are the main
// process's group, what carries the attempt's mark in its environment, and the
// orphans that are traced back to it.
type Tree struct {
	PID     int // the main process, and the number of its group
	Mark    Mark
	reaped  bool          // the main process was: its number may be another's by now
	Group   *cgroup.Group // nil: none
	Orphans *Orphans      // nil: there is a control group, or nobody adopts
	took    taken
}

// Signal sends a signal to every process of the tree: to the main process's group
// at once, then to what left that.
func (t *Tree) Signal(sig syscall.Signal) {
	if t.holdsNumber() {
		unix.Kill(-t.PID, sig)
	}
	t.SignalOthers(sig)
}

// SignalOthers signals what left the main process's group.
func (t *Tree) SignalOthers(sig syscall.Signal) {
	own := t.holdsNumber()

	for _, pid := range t.knownProcesses() {
		// What looks dead may be a process whose first thread has ended.
		if st, err := ReadStat(pid); err == nil && !(own && st.Group == t.PID) {
			signalSame(st, sig)
		}
	}
}

// knownProcesses are the processes of the tree that are known without a look at all there
// are. The group's own may be among them.
func (t *Tree) knownProcesses() []int {
	if t.Group != nil {
		return t.Group.PIDs()
	}
	return t.Orphans.orphansOf(t)
}

// Kill ends the tree at once, frozen or not. It does not wait, and is to be called
// again until the tree is empty.
func (t *Tree) Kill() {
	if t.Group != nil && t.Group.Kill() == nil {
		return
	}
	t.Signal(unix.SIGKILL)
}

// Freeze has every process of the tree stand still, and returns when all do.
// After an error some may; Thaw then.
func (t *Tree) Freeze() error {
	if t.Group != nil {
		return t.Group.Freeze()
	}

	t.Signal(unix.SIGSTOP)
	// Two looks in a row have to find nothing that moves: in the middle of an exec, a
	// process shows no mark.
	clean := 0
	for deadline := time.Now().Add(freezeTimeout); ; time.Sleep(time.Millisecond) {
		all, err := t.signalEach(func(st Stat) bool { return !st.Stopped() }, unix.SIGSTOP)
		if err != nil {
			return fmt.Errorf("freeze: %w", err)
		}

		// What sleeps in the kernel (the parent of a vfork, or who waits for a disk) has
		// its signal by now, and stops before it does anything else.
		moving := 0
		for _, st := range all {
			if st.State != 'D' {
				moving++
			}
		}

		if clean++; moving > 0 {
			clean = 0
		}

		if clean == 2 {
			return nil
		}
		if moving > 0 && time.Now().After(deadline) { // if none moves, it is not they who take their time
			return fmt.Errorf("freeze: %d processes do not stand still", moving)
		}
	}
}

// Thaw has every process of the tree go on.
func (t *Tree) Thaw() error {
	if t.Group != nil {
		return t.Group.Thaw()
	}

	t.Signal(unix.SIGCONT)

	if _, err := t.signalEach(Stat.Stopped, unix.SIGCONT); err != nil {
		return fmt.Errorf("thaw: %w", err)
	}

	return nil
}

// Empty reports whether nothing is left of the tree but zombies. Of what has no
// control group it sees the main process's group and orphans, and not what is left
// below those: that comes up when they have ended.
func (t *Tree) Empty() bool {
	if t.Group != nil {
		return t.Group.Empty()
	}
	return !groupAlive(t.PID) && len(t.Orphans.orphansOf(t)) == 0
}

// holdsNumber reports whether the group's number is still this group's: not if
// the leader was reaped and its number is a new process's.
func (t *Tree) holdsNumber() bool {
	if t.PID <= 0 {
		return false
	}
	if !t.reaped {
		return true
	}

	_, err := ReadStat(t.PID)
	return err != nil
}

// signalEach signals the processes of a tree without a control group that match, and
// returns them.
func (t *Tree) signalEach(match func(Stat) bool, sig syscall.Signal) (all []Stat, err error) {
	var h KillSet
	h.AddMark(t.Mark)

	pids, err := ListPIDs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}

	own := t.holdsNumber()

	for _, pid := range pids {
		st, err := ReadStat(pid)
		if err != nil || st.Dead() || !match(st) || !(own && st.Group == t.PID) && !h.hasMark(pid) {
			continue
		}

		all = append(all, st)
		signalSame(st, sig)
	}

	return all, nil
}

// Stopped reports whether a process is stopped.
func (s Stat) Stopped() bool { return s.State == 'T' || s.State == 't' }

// signalSame makes sure by a pidfd that the process signalled is the one looked at.
func signalSame(st Stat, sig syscall.Signal) bool {
	fd, err := unix.PidfdOpen(st.PID, 0)
	if errors.Is(err, unix.ENOSYS) { // before Linux 5.3
		again, err := ReadStat(st.PID)
		return err == nil && again.Start == st.Start && unix.Kill(st.PID, sig) == nil
	}

	if err != nil {
		return false
	}

	defer unix.Close(fd)

	if again, err := ReadStat(st.PID); err != nil || again.Start != st.Start {
		return false
	}

	return unix.PidfdSendSignal(fd, sig, nil, 0) == nil
}
