package proctree

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// procRoot is the mount point of procfs.
const procRoot = "/proc"

// clockTick is the unit of start times in /proc: USER_HZ is 100 on every Linux that
// Go runs on.
const clockTick = 10 * time.Millisecond

// Stat contains fields of /proc/<pid>/stat.
type Stat struct {
	PID, Parent int
	Group       int           // the process group
	State       byte          // a letter, as in ps(1)
	flags       uint64        // the kernel's PF_ flags
	Start       time.Duration // start time since boot, a multiple of tick
}

// Dead reports whether a process is a zombie. A process whose first thread alone has ended looks the same.
func (s Stat) Dead() bool { return s.State == 'Z' || s.State == 'X' }

// exiting is PF_EXITING, which the kernel sets when a thread begins to end, before the thread leaves its control groups.
const exiting = 0x4

// Exiting reports whether a process has begun to end, or its first thread alone. From then on, /proc shows it in the root
// of each hierarchy of cgroup v1, whatever its groups were.
func (s Stat) Exiting() bool { return s.Dead() || s.flags&exiting != 0 }

// forkNoExec is PF_FORKNOEXEC. The kernel sets it at fork, clears it when the process executes a program,
// and does not change it afterwards, so it can be read until the process is reaped. The flag is part of the kernel's
// interface: process accounting reports it (acct(5), AFORK).
const forkNoExec = 0x40

// NeverExecuted reports whether a child, which has not been reaped, has not executed a
// program since its fork. It may be dead.
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

// parseStat parses the fields after the last ')', because the program's name may
// contain any characters.
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

// readEnviron returns the environment of the process with a directory in /proc; empty if it has none, or if it cannot be read.
//
// In the middle of an execve, a process has its new memory, and the kernel shows no environment until that is complete. It is
// read again then. wait is called in between; if it returns false, the result is empty.
func readEnviron(dir string, wait func() bool) []byte {
	for {
		// An execve may begin or end between any two of these calls.
		if env, err := os.ReadFile(dir + "/environ"); err != nil || len(env) > 0 {
			return env
		}

		before := environEnd(dir)
		if before == noMemory {
			return nil
		}

		if env, err := os.ReadFile(dir + "/environ"); err != nil || len(env) > 0 {
			return env
		}

		if before == environEnd(dir) && before != "0" || !wait() {
			return nil
		}
	}
}

// noMemory is what environEnd returns for kernel threads and for processes that have ended.
const noMemory = "none"

// kernelThread is PF_KTHREAD.
const kernelThread = 0x200000

// environEnd returns the address at which the environment of a process ends, as /proc/<pid>/stat shows it. It is "0" in the middle
// of an execve.
func environEnd(dir string) string {
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return noMemory
	}

	st, err := parseStat(0, b)
	if err != nil || st.Exiting() || st.flags&kernelThread != 0 {
		return noMemory
	}

	// env_end is field 51, and the first field after the name is field 3. It exists since Linux 3.5.
	if f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]); len(f) > 48 {
		return string(f[48])
	}

	return ""
}

// ListPIDs lists all processes of the host that this one can see.
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

// Mark identifies the processes of an attempt by variables in their environment. Namespace and
// Task may be empty; then only the run's id and the token are compared.
type Mark struct {
	Namespace string
	Task      string
	RunID     string
	Token     int64
}

// Birth is the interval of CLOCK_BOOTTIME in which the leader of a process group was created. It tells the
// group from a later one with the same number.
type Birth struct{ From, To time.Duration }

// matchesStart reports whether a process with this start time may have been created in the interval. The kernel rounds
// start times down to a tick, so the interval is extended by one.
func (b Birth) matchesStart(start time.Duration) bool {
	return start >= b.From.Truncate(clockTick)-clockTick && start <= b.To+clockTick
}

// The environment variables that contain an attempt's mark.
const (
	EnvTask      = "CARILLON_TASK"
	EnvNamespace = "CARILLON_NAMESPACE"
	EnvRunID     = "CARILLON_RUN_ID"
	EnvToken     = "CARILLON_FENCING_TOKEN"
)

// groupAlive reports whether a process group has members that are not zombies.
func groupAlive(pgid int) bool {
	// Cheap: most groups are gone altogether.
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

// BootTime returns CLOCK_BOOTTIME, which is monotonic and counts the time in which the
// host was suspended. Deadlines on which other nodes rely are measured on this clock.
func BootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("clock_gettime: " + err.Error()) // it exists since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}

// Limits of IsDescendant. A chain of parents is a few processes long on a usual host.
const (
	maxAncestors  = 256
	ancestorReads = 8
)

// IsDescendant reports whether a process is a descendant of another one, which must be alive. While the other one is a
// subreaper (BecomeSubreaper), its descendants stay descendants when their parents end.
//
// An error means that the answer is unknown: the process has ended, its parents change all the time, or they cannot be
// seen.
func IsDescendant(pid, ancestor int) (bool, error) {
	var problem error

	// Parents may end while the chain is read, and their numbers may be reused. If two successive reads are equal, the chain did
	// not change in between.
	var before []parent
	for range ancestorReads {
		chain, err := ancestorsOf(pid)
		if err != nil {
			problem, before = err, nil
			continue
		}

		if slices.ContainsFunc(chain[1:], func(p parent) bool { return p.pid == ancestor }) {
			return true, nil
		}
		if slices.Equal(chain, before) {
			return false, nil
		}

		problem, before = errors.New("its parents change"), chain
	}

	return false, fmt.Errorf("parents of process %d: %w", pid, problem)
}

// parent is a process in a chain of parents.
type parent struct {
	pid   int
	start time.Duration
}

// ancestorsOf returns a process, its parent, the parent of the latter, and so on.
func ancestorsOf(pid int) (chain []parent, err error) {
	for len(chain) == 0 || pid > 0 {
		st, err := ReadStat(pid)
		switch {
		case err != nil:
			return nil, err
		case len(chain) > 0 && st.Start > chain[len(chain)-1].start:
			return nil, fmt.Errorf("the number %d of a parent was reused", pid)
		case len(chain) == maxAncestors:
			return nil, fmt.Errorf("it has more than %d", maxAncestors)
		}

		chain, pid = append(chain, parent{pid, st.Start}), st.Parent
	}

	return chain, nil
}
