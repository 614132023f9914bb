package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// freezeTimeout is the time limit for freezing a group.
const freezeTimeout = 2 * time.Second

// Group is the control group of one attempt at a time. One goroutine owns it.
type Group struct {
	dir     string // the directory in which its processes are found
	fd      int    // descriptor of dir; -1 with the v1 freezer
	events  int    // descriptor of cgroup.events; -1 with the v1 freezer
	stat    int    // descriptor of cpu.stat; -1 with the v1 freezer
	freezer bool   // dir belongs to the v1 freezer
	limited bool   // it has limits
	frozen  bool   // it was frozen and not thawed
	killed  bool   // cgroup.kill was used, so it must not be reused; see Kill
	entered bool   // Join has moved the process into dir

	joined       []string // directories of v1 controllers that limit it
	memory, pids string   // those of joined that account memory and processes; "": none
	spent        int64    // processor time in µs that earlier attempts have used in the group
	last         int64    // the same including the present attempt, as last read
}

// FD returns the descriptor of the group for CLONE_INTO_CGROUP, or -1 if a process can only enter the group by
// Join. It is valid until the group is returned.
func (g *Group) FD() int {
	return g.fd
}

// Dir returns the directory of the group, or "" if g is nil.
func (g *Group) Dir() string {
	if g == nil {
		return ""
	}
	return g.dir
}

// Joins reports whether a process must also be passed to Join before its first instruction.
func (g *Group) Joins() bool { return g.freezer || len(g.joined) > 0 }

// Join moves a process, which must be held, into those directories of the group that FD does not cover.
// After an error it may have entered some of them; Holds reports whether it is in Dir.
func (g *Group) Join(pid int) error {
	if g.freezer {
		if err := putProcess(g.dir, pid); err != nil {
			return fmt.Errorf("join a control group: %w", err)
		}
		g.entered = true
	}

	for _, dir := range g.joined {
		if err := putProcess(dir, pid); err != nil {
			return fmt.Errorf("join a control group: %w", err)
		}
	}

	return nil
}

// Holds reports whether the started process is in Dir: it was started with FD, or
// Join has moved it.
func (g *Group) Holds() bool { return g.fd >= 0 || g.entered }

// rereadFile reads a short file through an open descriptor. Opening it each time would be the largest
// part of a group's cost.
func rereadFile(fd int) (string, error) {
	var b [1024]byte
	n, err := unix.Pread(fd, b[:], 0)
	if err != nil {
		return "", os.NewSyscallError("pread", err)
	}

	return string(b[:n]), nil
}

// Empty reports whether the group contains no processes, not counting zombies. If that is
// unknown, it returns false.
func (g *Group) Empty() bool { return g.isEmpty() }

// isEmpty implements Empty.
func (g *Group) isEmpty() bool {
	if g.freezer { // only root can create groups below, so they are not checked
		pids, err := pidsIn(g.dir)
		return err == nil && len(pids) == 0
	}

	events, err := rereadFile(g.events)
	return err == nil && strings.Contains(events, "populated 0")
}

// PIDs returns the processes in the group, without those in groups below it.
func (g *Group) PIDs() []int {
	pids, _ := pidsIn(g.dir) // after an error there are none to return
	return pids
}

// Kill kills every process in the group, also if it is frozen, and does not wait. The caller repeats it until the group
// is empty, because before Linux 5.14 processes may fork at the same time.
//
// Some kernels, such as 6.18, kill every process that is started by CLONE_INTO_CGROUP in a group
// to which cgroup.kill was ever written. So such a group is not reused.
func (g *Group) Kill() error {
	if g.freezer || !fileExists(g.dir, "cgroup.kill") {
		return killEach(g.dir)
	}
	g.killed = true
	return writeFile(g.dir, "cgroup.kill", "1")
}

// Kill kills every process in the group with this directory, and returns their numbers, without zombies. It does
// not use cgroup.kill, because the group's daemon may be alive and reuse the group.
func Kill(dir string) (pids []int) {
	if pids, _ = pidsIn(dir); len(pids) > 0 {
		_ = killEach(dir) // the caller calls Kill again and finds what is left
	}
	return pids
}

// killEach kills the processes of one directory one by one. It freezes them first, because frozen processes cannot
// fork. In v1, frozen processes die only when they are thawed.
func killEach(dir string) error {
	file, freeze, thaw := "cgroup.freeze", "1", "0"
	if fileExists(dir, "freezer.state") {
		file, freeze, thaw = "freezer.state", "FROZEN", "THAWED"
	}

	freezes := writeFile(dir, file, freeze) == nil
	pids, err := pidsIn(dir)
	for _, pid := range pids {
		if kerr := unix.Kill(pid, unix.SIGKILL); kerr != nil && kerr != unix.ESRCH {
			err = errors.Join(err, kerr)
		}
	}

	if freezes {
		err = errors.Join(err, writeFile(dir, file, thaw))
	}

	return err
}

// Freeze stops every process and returns when all are stopped. After an error,
// some may be stopped, so the caller must call Thaw.
func (g *Group) Freeze() error {
	g.frozen = true
	still := func() bool {
		events, err := rereadFile(g.events)
		return err == nil && strings.Contains(events, "frozen 1")
	}

	var err error
	if g.freezer {
		still = func() bool { s, _ := readFile(g.dir, "freezer.state"); return s == "FROZEN" }
		err = writeFile(g.dir, "freezer.state", "FROZEN")
	} else {
		err = writeFile(g.dir, "cgroup.freeze", "1")
	}

	if err != nil {
		return fmt.Errorf("freeze: %w", err)
	}

	for deadline := time.Now().Add(freezeTimeout); !still(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) && !still() { // on a busy host, the last check may be from long before
			return errors.New("freeze: not all processes stopped")
		}
	}

	return nil
}

// Thaw resumes every process.
func (g *Group) Thaw() error {
	var err error
	if g.freezer {
		err = writeFile(g.dir, "freezer.state", "THAWED")
	} else {
		err = writeFile(g.dir, "cgroup.freeze", "0")
	}

	if err != nil {
		return fmt.Errorf("thaw: %w", err)
	}

	g.frozen = false

	return nil
}

// Usage contains the resources that the processes of a group have used. A value of 0 may mean that it is unknown.
type Usage struct {
	CPU        time.Duration
	MemoryPeak int64 // peak of all processes together in bytes; only for groups with limits
	OOMKills   int64 // number of processes that the kernel killed because memory was exhausted
	MemoryFull bool  // the group reached its own limit; otherwise memory was exhausted outside the group
	Refused    int64 // number of forks that failed because of a limit on processes
}

// Usage returns the resources that were used since Acquire.
func (g *Group) Usage() (u Usage) {
	g.last = g.cpuTime()
	u.CPU = time.Duration(g.last-g.spent) * time.Microsecond

	if !g.limited {
		return u
	}

	// v1 and v2 count in different files.
	if g.memory != "" {
		u.MemoryPeak = readNumber(g.memory, "memory.max_usage_in_bytes")
		text, _ := readFile(g.memory, "memory.oom_control")
		u.OOMKills = lineNumber(text, "oom_kill")
		u.MemoryFull = readNumber(g.memory, "memory.failcnt") > 0 || readNumber(g.memory, "memory.memsw.failcnt") > 0
	} else {
		u.MemoryPeak = readNumber(g.dir, "memory.peak")
		text, _ := readFile(g.dir, "memory.events")
		u.OOMKills, u.MemoryFull = lineNumber(text, "oom_kill"), lineNumber(text, "oom") > 0
	}

	dir := g.dir
	if g.pids != "" {
		dir = g.pids
	}

	text, _ := readFile(dir, "pids.events")
	u.Refused = lineNumber(text, "max")

	return u
}

// cpuTime returns the processor time that was ever used in the group, in µs. If it cannot be read, it returns the value
// at Acquire.
func (g *Group) cpuTime() int64 {
	if g.freezer {
		return 0
	}

	text, err := rereadFile(g.stat)
	if err != nil {
		return g.spent
	}

	return lineNumber(text, "usage_usec")
}

// resetForReuse prepares an empty group for the next attempt.
func (g *Group) resetForReuse() error {
	if g.frozen {
		if err := g.Thaw(); err != nil {
			return err
		}
	}

	if g.last == g.spent { // Usage was not called
		g.last = g.cpuTime()
	}

	g.spent, g.entered = g.last, false

	return nil
}

// openFiles opens the files that stay open.
func (g *Group) openFiles() (err error) {
	if g.freezer {
		return nil
	}

	for _, f := range []struct {
		fd    *int
		name  string
		flags int
	}{{&g.fd, "", unix.O_DIRECTORY}, {&g.events, "cgroup.events", 0}, {&g.stat, "cpu.stat", 0}} {
		path := filepath.Join(g.dir, f.name)
		if *f.fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|f.flags, 0); err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
	}

	return nil
}

// closeFiles closes them.
func (g *Group) closeFiles() {
	for _, fd := range []*int{&g.fd, &g.events, &g.stat} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// removeDir removes an empty group with all its directories, and closes its files.
func (g *Group) removeDir() error {
	for _, dir := range append([]string{g.dir}, g.joined...) {
		if err := removeTree(dir); err != nil { // root may have created groups below
			return err
		}
	}

	g.closeFiles()

	return nil
}

// readFile returns the contents of a file without surrounding white space.
func readFile(dir, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(b)), err
}

// writeFile writes to a file that exists already. The kernel creates the files of a group.
func writeFile(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}

	_, err = f.WriteString(value)
	if cerr := f.Close(); err == nil {
		err = cerr
	}

	return err
}

// fileExists reports whether a file exists. With an empty name, it reports whether the directory exists.
func fileExists(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// readNumber returns the number in a file, or 0 if it cannot be read.
func readNumber(dir, name string) int64 {
	s, err := readFile(dir, name)
	if err != nil {
		return 0
	}

	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// lineNumber returns the number in the line "name number" of a text, or 0 if there is no such line.
func lineNumber(text, name string) int64 {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == name {
			n, _ := strconv.ParseInt(v, 10, 64)
			return n
		}
	}

	return 0
}

// putProcess moves a process into a group.
func putProcess(dir string, pid int) error { return writeFile(dir, "cgroup.procs", strconv.Itoa(pid)) }

// pidsIn returns the processes in a group, without those in groups below it.
func pidsIn(dir string) ([]int, error) {
	s, err := readFile(dir, "cgroup.procs")
	if err != nil {
		return nil, err
	}

	var pids []int
	for line := range strings.SplitSeq(s, "\n") {
		if pid, err := strconv.Atoi(line); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}

	return pids, nil
}

// The directories of groups below the root of a daemon.
const (
	plainDir   = "plain"   // attempts without limits
	limitedDir = "limited" // attempts with limits
)

// rootPrefix begins the name of each root.
const rootPrefix = "carillon-"

// AttemptGroup returns the path of the control group of a process of an attempt, whichever daemon of this host runs the attempt.
// It returns "" for other processes, and if the kernel has no control groups. Only a process with
// the rights of root can leave the group of its attempt.
//
// The number may belong to another process when AttemptGroup returns, unless the caller knows that it does not.
func AttemptGroup(pid int) (string, error) {
	groups, err := ownGroups(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}

	for _, path := range groups {
		if isAttemptGroup(path) {
			return path, nil
		}
	}

	return "", err
}

// isAttemptGroup reports whether a path, in the form of /proc/<pid>/cgroup, is the group of an attempt or below it.
func isAttemptGroup(path string) bool {
	names := strings.Split(path, "/")
	for i, name := range names[:len(names)-1] {
		if strings.HasPrefix(name, rootPrefix) && slices.Contains([]string{plainDir, limitedDir}, names[i+1]) {
			return true
		}
	}

	return false
}
