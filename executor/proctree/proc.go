package proctree

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// procRoot is where the kernel shows processes.
const procRoot = "/proc"

// clockTick is the unit of start times in /proc: USER_HZ is 100 on every Linux that
// Go runs on.
const clockTick = 10 * time.Millisecond

// Stat is what /proc/<pid>/stat says.
type Stat struct {
	PID, Parent int
	Group       int           // the process group
	State       byte          // as in ps(1)
	flags       uint64        // of the kernel
	Start       time.Duration // since boot, to the tick
}

// Dead reports whether a process is a zombie. One whose first thread has ended looks the same.
func (s Stat) Dead() bool { return s.State == 'Z' || s.State == 'X' }

// forkNoExec is PF_FORKNOEXEC, which the kernel clears when a process executes a program
// and then keeps, until the process is reaped. Process accounting (acct(5), AFORK) has
// told it since Linux 2.
const forkNoExec = 0x40

// NeverExecuted reports whether a child that has not been reaped has not executed a
// program, and did not before it died.
func NeverExecuted(pid int) bool {
	st, err := ReadStat(pid)
	return err == nil && st.flags&forkNoExec != 0
}

// ReadStat reads /proc/<pid>/stat.
func ReadStat(pid int) (Stat, error) {
	b, err := os.ReadFile(procRoot + "/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, err
	}
	return parseStat(pid, b)
}

// parseStat reads fields from behind the last ')': the program's name may
// contain anything.
func parseStat(pid int, b []byte) (Stat, error) {
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return Stat{}, fmt.Errorf("stat of process %d: %d fields", pid, len(f))
	}

	parent, err0 := strconv.Atoi(string(f[1]))
	pgrp, err1 := strconv.Atoi(string(f[2]))
	start, err2 := strconv.ParseInt(string(f[19]), 10, 64)
	flags, err3 := strconv.ParseUint(string(f[6]), 10, 64)

	return Stat{PID: pid, Parent: parent, Group: pgrp, State: f[0][0], flags: flags, Start: time.Duration(start) * clockTick}, errors.Join(err0, err1, err2, err3)
}

// ListPIDs lists all process ids.
func ListPIDs() ([]int, error) {
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

// Mark is an attempt that may have left processes behind. Namespace and
// Task may be empty: then the run's id and the token alone decide.
type Mark struct {
	Namespace string
	Task      string
	RunID     string
	Token     int64
}

// Birth is when a process group's leader was started, at the earliest and the
// latest, on CLOCK_BOOTTIME: it tells the group from a later one of that number.
type Birth struct{ From, To time.Duration }

func (b Birth) matchesStart(start time.Duration) bool {
	return start >= b.From.Truncate(clockTick)-clockTick && start <= b.To+clockTick
}

// The variables by which a process tells which attempt it belongs to.
const (
	EnvTask      = "CARILLON_TASK"
	EnvNamespace = "CARILLON_NAMESPACE"
	EnvRunID     = "CARILLON_RUN_ID"
	EnvToken     = "CARILLON_FENCING_TOKEN"
)

// groupAlive reports whether a process group has members that are not zombies.
func groupAlive(pgid int) bool {
	if unix.Kill(-pgid, 0) == unix.ESRCH {
		return false
	}

	pids, err := ListPIDs()
	if err != nil {
		return true
	}

	for _, pid := range pids {
		if st, err := ReadStat(pid); err == nil && st.Group == pgid && !st.Dead() {
			return true
		}
	}

	return false
}

// BootTime is CLOCK_BOOTTIME: monotonic, and it counts the time in which the
// host was suspended. Deadlines that others rely on are told on this clock.
func BootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("clock_gettime: " + err.Error()) // it exists since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}
