package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// freezeTimeout is how long a group may take to stand still.
const freezeTimeout = 2 * time.Second

// Group is the control group of one attempt at a time. It belongs to one goroutine.
type Group struct {
	dir     string // by which its processes are found
	fd      int    // of dir
	events  int    // of cgroup.events; -1 with freezer
	stat    int    // of cpu.stat; -1 with freezer
	freezer bool   // dir is of the v1 freezer
	limited bool
	frozen  bool
	killed  bool // it is not used again: see Kill
	entered bool // dir, by Join

	joined       []string // v1 groups that limit it
	memory, pids string   // those of joined that count
	spent        int64    // µs of processors' time that others took in it before
	last         int64    // and with its own, as last read
}

// FD is what a process is to be started in (CLONE_INTO_CGROUP); -1: it joins by
// Join alone. It is valid until the group is given back.
func (x *Group) FD() int {
	return x.fd
}

// Dir is its directory; empty for nil.
func (x *Group) Dir() string {
	if x == nil {
		return ""
	}
	return x.dir
}

// Joins reports whether a process has to Join, too, before its first instruction.
func (x *Group) Joins() bool { return x.freezer || len(x.joined) > 0 }

// Join puts a process, which stands still, where FD does not.
// After an error it may have joined a part, and Holds still says whether it is in Dir.
func (x *Group) Join(pid int) error {
	if x.freezer {
		if err := putProcess(x.dir, pid); err != nil {
			return fmt.Errorf("join a control group: %w", err)
		}
		x.entered = true
	}

	for _, dir := range x.joined {
		if err := putProcess(dir, pid); err != nil {
			return fmt.Errorf("join a control group: %w", err)
		}
	}

	return nil
}

// Holds reports whether the process that was started is in the group: by FD, or
// because Join said so.
func (x *Group) Holds() bool { return x.fd >= 0 || x.entered }

// rereadFile reads a short file that is kept open: to open it again each time would be
// most of what a group costs.
func rereadFile(fd int) (string, error) {
	var b [1024]byte
	n, err := unix.Pread(fd, b[:], 0)
	if err != nil {
		return "", os.NewSyscallError("pread", err)
	}

	return string(b[:n]), nil
}

// Empty reports whether no process is in the group, zombies not counted. What
// cannot be found out is not empty.
func (x *Group) Empty() bool { return x.isEmpty() }

func (x *Group) isEmpty() bool {
	if x.freezer { // there are no groups below: only root could make one
		pids, err := pidsIn(x.dir)
		return err == nil && len(pids) == 0
	}

	events, err := rereadFile(x.events)
	return err == nil && strings.Contains(events, "populated 0")
}

// PIDs are the processes in the group, those of groups below it not among them.
func (x *Group) PIDs() []int {
	pids, _ := pidsIn(x.dir) // none can be told, none is
	return pids
}

// Kill kills every process in the group, frozen or not, and does not wait. Until it
// is empty it is to be called again: only from Linux 5.14 on nothing forks away.
//
// Kernels (6.18 is one) kill whatever is started by CLONE_INTO_CGROUP in a group
// that cgroup.kill was ever written to. Such a group is not handed on.
func (x *Group) Kill() error {
	if x.freezer || !fileExists(x.dir, "cgroup.kill") {
		return killEach(x.dir)
	}
	x.killed = true
	return writeFile(x.dir, "cgroup.kill", "1")
}

// Kill kills every process in the group of a directory, which its daemon may use
// again, and returns which those were, zombies not counted.
func Kill(dir string) (pids []int) {
	if pids, _ = pidsIn(dir); len(pids) > 0 {
		_ = killEach(dir) // what is left is found when it is called again
	}
	return pids
}

// killEach kills what is in one directory one by one. What stands still does not
// fork away; in v1, it does not die before it is thawed either.
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

// Freeze has every process stand still, and returns when all do. After an error
// some may; Thaw then.
func (x *Group) Freeze() error {
	x.frozen = true
	still := func() bool {
		events, err := rereadFile(x.events)
		return err == nil && strings.Contains(events, "frozen 1")
	}

	var err error
	if x.freezer {
		still = func() bool { s, _ := readFile(x.dir, "freezer.state"); return s == "FROZEN" }
		err = writeFile(x.dir, "freezer.state", "FROZEN")
	} else {
		err = writeFile(x.dir, "cgroup.freeze", "1")
	}

	if err != nil {
		return fmt.Errorf("freeze: %w", err)
	}

	for deadline := time.Now().Add(freezeTimeout); !still(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) && !still() { // the last look may be from long before, if the host is busy
			return errors.New("freeze: not all processes stand still")
		}
	}

	return nil
}

// Thaw has every process go on.
func (x *Group) Thaw() error {
	var err error
	if x.freezer {
		err = writeFile(x.dir, "freezer.state", "THAWED")
	} else {
		err = writeFile(x.dir, "cgroup.freeze", "0")
	}

	if err != nil {
		return fmt.Errorf("thaw: %w", err)
	}

	x.frozen = false

	return nil
}

// Usage is what the processes of a group took. What is 0 is not known.
type Usage struct {
	CPU        time.Duration
	MemoryPeak int64 // bytes, of all together; only where memory is limited
	OOMKills   int64 // processes that the kernel killed for lack of memory
	MemoryFull bool  // memory was at its own limit; else kills are for lack of it around the group
	Refused    int64 // forks that failed because as many processes as may be were there
}

// Usage is what was taken since the group was taken.
func (x *Group) Usage() (u Usage) {
	x.last = x.cpuTime()
	u.CPU = time.Duration(x.last-x.spent) * time.Microsecond

	if !x.limited {
		return u
	}

	if x.memory != "" {
		u.MemoryPeak = readNumber(x.memory, "memory.max_usage_in_bytes")
		text, _ := readFile(x.memory, "memory.oom_control")
		u.OOMKills = lineNumber(text, "oom_kill")
		u.MemoryFull = readNumber(x.memory, "memory.failcnt") > 0 || readNumber(x.memory, "memory.memsw.failcnt") > 0
	} else {
		u.MemoryPeak = readNumber(x.dir, "memory.peak")
		text, _ := readFile(x.dir, "memory.events")
		u.OOMKills, u.MemoryFull = lineNumber(text, "oom_kill"), lineNumber(text, "oom") > 0
	}

	dir := x.dir
	if x.pids != "" {
		dir = x.pids
	}

	text, _ := readFile(dir, "pids.events")
	u.Refused = lineNumber(text, "max")

	return u
}

func (x *Group) cpuTime() int64 {
	if x.freezer {
		return 0
	}

	text, err := rereadFile(x.stat)
	if err != nil {
		return x.spent
	}

	return lineNumber(text, "usage_usec")
}

// resetForReuse readies an empty group for the next one.
func (x *Group) resetForReuse() error {
	if x.frozen {
		if err := x.Thaw(); err != nil {
			return err
		}
	}

	if x.last == x.spent { // nobody has asked for its usage
		x.last = x.cpuTime()
	}

	x.spent, x.entered = x.last, false

	return nil
}

// openFiles opens what is kept open.
func (x *Group) openFiles() (err error) {
	if x.freezer {
		return nil
	}

	for _, f := range []struct {
		fd    *int
		name  string
		flags int
	}{{&x.fd, "", unix.O_DIRECTORY}, {&x.events, "cgroup.events", 0}, {&x.stat, "cpu.stat", 0}} {
		path := filepath.Join(x.dir, f.name)
		if *f.fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|f.flags, 0); err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
	}

	return nil
}

func (x *Group) closeFiles() {
	for _, fd := range []*int{&x.fd, &x.events, &x.stat} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// removeDir removes an empty group.
func (x *Group) removeDir() error {
	for _, dir := range append([]string{x.dir}, x.joined...) {
		if err := removeTree(dir); err != nil { // root may have made some below
			return err
		}
	}

	x.closeFiles()

	return nil
}
