package proctree

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/task"
)

// freezeTimeout is the time limit for stopping all processes of a tree.
const freezeTimeout = 2 * time.Second

// Tree is all processes of an attempt that has been started. The attempt's goroutine
// owns it.
//
// With a control group, they are the processes in that group. Without one, they are the process
// group of the main process, the processes that carry the attempt's mark in their environment, and the
// orphans that are assigned to the attempt.
type Tree struct {
	PID       int // the main process, and the number of its group
	Mark      Mark
	reaped    bool          // the main process was reaped, so its number may have been reused
	Group     *cgroup.Group // nil: none
	Orphans   *Orphans      // nil: the daemon does not adopt orphans
	mainUsage mainUsage     // the resource usage of the main process, once it was reaped
}

// Signal sends a signal to every process of the tree: first to the whole process group of the main process,
// then to the processes outside it. Processes that are known only by their mark are not signalled.
func (t *Tree) Signal(sig syscall.Signal) {
	if t.holdsNumber() {
		unix.Kill(-t.PID, sig)
	}
	t.SignalOthers(sig)
}

// SignalOthers signals the known processes of the tree outside the main process's group.
func (t *Tree) SignalOthers(sig syscall.Signal) {
	own := t.holdsNumber()

	for _, pid := range t.knownProcesses() {
		// Signal processes that look dead, too: it may be that only the first thread has ended.
		if st, err := ReadStat(pid); err == nil && !(own && st.Group == t.PID) {
			signalSame(st, sig)
		}
	}
}

// knownProcesses returns the processes of the tree that are found without reading all processes of the host. Members of
// the main process's group may be among them.
func (t *Tree) knownProcesses() []int {
	if t.Group != nil {
		return t.Group.PIDs()
	}
	return t.Orphans.orphansOf(t)
}

// Kill sends SIGKILL to all processes of the tree, also if they are stopped. It does not wait. The caller repeats it
// until the tree is empty, because a process may fork at the same time.
func (t *Tree) Kill() {
	if t.Group != nil && t.Group.Kill() == nil {
		return
	}
	t.Signal(unix.SIGKILL)
}

// Freeze stops every process of the tree and returns when all are stopped.
// After an error, some of them may be stopped, so the caller must call Thaw.
func (t *Tree) Freeze() error {
	if t.Group != nil {
		return t.Group.Freeze()
	}

	t.Signal(unix.SIGSTOP)
	// Two scans in a row have to find no process that still runs, because a process may fork during the first one.
	clean := 0
	for deadline := time.Now().Add(freezeTimeout); ; time.Sleep(time.Millisecond) {
		all, err := t.signalEach(func(st Stat) bool { return !st.Stopped() }, unix.SIGSTOP)
		if err != nil {
			return fmt.Errorf("freeze: %w", err)
		}

		// A process in uninterruptible sleep (the parent of a vfork, or a process that waits for a disk) has
		// a pending signal by now, and stops before it executes anything else. It need not be waited for.
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
		if moving > 0 && time.Now().After(deadline) { // without a running process, the delay was this host's, so scan once more
			return fmt.Errorf("freeze: %d processes did not stop", moving)
		}
	}
}

// Thaw resumes every process of the tree.
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

// Empty reports whether only zombies are left of the tree. Without a
// control group, it finds the main process's group and the orphans, but not the descendants of orphans outside the group.
// These become orphans themselves when their parents have ended.
func (t *Tree) Empty() bool {
	if t.Group != nil {
		return t.Group.Empty()
	}
	return !groupAlive(t.PID) && len(t.Orphans.orphansOf(t)) == 0
}

// holdsNumber reports whether the number of the process group still belongs to this group. It does not
// if the leader was reaped and a new process has its number.
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

// signalEach signals those processes of a tree without a control group that match, and
// returns them. It reads all processes of the host.
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

// Stopped reports whether a process is stopped, by a signal or by a tracer.
func (s Stat) Stopped() bool { return s.State == 'T' || s.State == 't' }

// signalSame signals a process only if it is still the one that st describes. A pidfd makes sure that its number
// is not reused between the check and the signal. It reports whether the signal was sent.
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

// mainUsage is the resource usage that wait4 returns for the main process, including the descendants that it has
// reaped itself.
type mainUsage struct {
	cpu           time.Duration
	largest       int64 // bytes, of the largest process; 0: not known
	read, written int64 // bytes from and to storage
}

// sectorSize is the unit in bytes in which the kernel counts block I/O of a process.
const sectorSize = 512

// mainUsageOf converts the result of wait4.
func mainUsageOf(u syscall.Rusage) mainUsage {
	return mainUsage{
		cpu:     time.Duration(u.Utime.Nano() + u.Stime.Nano()),
		largest: meaningfulPeak(u.Maxrss << 10),
		read:    u.Inblock * sectorSize, written: u.Oublock * sectorSize,
	}
}

// meaningfulPeak returns the peak memory of a child in bytes if it is meaningful, and 0 otherwise. A child shares this
// process's memory until it executes its program, and the kernel counts that memory as the child's. So a peak
// that does not exceed this process's own peak says nothing about the program. The kernel's counters are
// not exact, so a peak must exceed it by a sixteenth.
func meaningfulPeak(peak int64) int64 {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil || peak <= (own.Maxrss+own.Maxrss>>4)<<10 {
		return 0
	}
	return peak
}

// MainReaped records that the main process was reaped, with its resource usage. From now on its number may be reused.
func (t *Tree) MainReaped(took syscall.Rusage) { t.reaped, t.mainUsage = true, mainUsageOf(took) }

// MainCPU returns the processor time of the main process and of the descendants that it has reaped. It is 0 before
// MainReaped.
func (t *Tree) MainCPU() time.Duration { return t.mainUsage.cpu }

// Usage returns the resources that the tree has used, and the counters of its control group, which show whether limits
// were reached. Without a group, the former covers only what MainReaped received.
func (t *Tree) Usage() (task.Usage, cgroup.Usage) {
	var u cgroup.Usage
	if t.Group != nil {
		u = t.Group.Usage()
	}

	return task.Usage{
		CPUMS:      max(u.CPU, t.mainUsage.cpu).Round(time.Millisecond).Milliseconds(),
		MemoryPeak: cmp.Or(u.MemoryPeak, t.mainUsage.largest),
		IORead:     t.mainUsage.read, IOWritten: t.mainUsage.written,
	}, u
}
