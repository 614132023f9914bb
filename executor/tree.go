package executor

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/cgroup"
)

// freezing is how long a tree may take to stand still.
const freezing = 2 * time.Second

// tree is all processes of an attempt that has been started. It belongs to the
// goroutine that sees the attempt to its end.
//
// With a control group they are what is in that. Without one they are the main
// process's group, what carries the attempt's mark in its environment, and the
// orphans that are traced back to it.
type tree struct {
	pid     int // the main process, and the number of its group
	mark    Leftover
	reaped  bool          // the main process was: its number may be another's by now
	group   *cgroup.Group // nil: none
	orphans *Orphans      // nil: there is a control group, or nobody adopts
	took    taken
}

// signal sends a signal to every process of the tree: to the main process's group
// at once, then to what left that.
func (t *tree) signal(sig syscall.Signal) {
	if t.holdsNumber() {
		unix.Kill(-t.pid, sig)
	}
	t.signalOthers(sig)
}

// signalOthers signals what left the main process's group.
func (t *tree) signalOthers(sig syscall.Signal) {
	own := t.holdsNumber()
	for _, pid := range t.others() {
		// What looks dead may be a process whose first thread has ended.
		if st, err := readStat(pid); err == nil && !(own && st.pgrp == t.pid) {
			signalSame(st, sig)
		}
	}
}

// others are the processes of the tree that are known without a look at all there
// are. The group's own may be among them.
func (t *tree) others() []int {
	if t.group != nil {
		return t.group.PIDs()
	}
	return t.orphans.of(t)
}

// kill ends the tree at once, frozen or not. It does not wait, and is to be called
// again until the tree is empty.
func (t *tree) kill() {
	if t.group != nil && t.group.Kill() == nil {
		return
	}
	t.signal(unix.SIGKILL)
}

// freeze has every process of the tree stand still, and returns when all do.
// After an error some may; thaw then.
func (t *tree) freeze() error {
	if t.group != nil {
		return t.group.Freeze()
	}
	t.signal(unix.SIGSTOP)
	// Two looks in a row have to find nothing that moves: in the middle of an exec, a
	// process shows no mark.
	clean := 0
	for deadline := time.Now().Add(freezing); ; time.Sleep(time.Millisecond) {
		all, err := t.each(func(st stat) bool { return !st.still() }, unix.SIGSTOP)
		if err != nil {
			return fmt.Errorf("freeze: %w", err)
		}
		// What sleeps in the kernel (the parent of a vfork, or who waits for a disk) has
		// its signal by now, and stops before it does anything else.
		moving := 0
		for _, st := range all {
			if st.state != 'D' {
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

// thaw has every process of the tree go on.
func (t *tree) thaw() error {
	if t.group != nil {
		return t.group.Thaw()
	}
	t.signal(unix.SIGCONT)
	if _, err := t.each(stat.still, unix.SIGCONT); err != nil {
		return fmt.Errorf("thaw: %w", err)
	}
	return nil
}

// empty reports whether nothing is left of the tree but zombies. Of what has no
// control group it sees the main process's group and orphans, and not what is left
// below those: that comes up when they have ended.
func (t *tree) empty() bool {
	if t.group != nil {
		return t.group.Empty()
	}
	return !groupAlive(t.pid) && len(t.orphans.of(t)) == 0
}

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

// each signals the processes of a tree without a control group that match, and
// returns them.
func (t *tree) each(match func(stat) bool, sig syscall.Signal) (all []stat, err error) {
	var h hunt
	h.addMark(t.mark)
	pids, err := processes()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	own := t.holdsNumber()
	for _, pid := range pids {
		st, err := readStat(pid)
		if err != nil || st.dead() || !match(st) || !(own && st.pgrp == t.pid) && !h.marked(pid) {
			continue
		}
		all = append(all, st)
		signalSame(st, sig)
	}
	return all, nil
}

// end gives up what the tree held, which is to be empty: a control group that is
// not is set aside.
func (p *running) endTree() {
	if p.tree.group != nil {
		p.groups.Give(p.tree.group)
	}
	p.tree.orphans.forget(&p.tree)
}

// sweep kills what left the group of an attempt that was made to end and has no
// control group.
func (p *running) sweep(l Leftover) {
	if p.tree.group != nil {
		return
	}
	killed, err := p.sweeper.clean(l)
	if killed > 0 || err != nil {
		p.log.Info("killed processes that had left their group", zap.String("run", l.RunID), zap.Int("processes", killed), zap.Error(err))
	}
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
