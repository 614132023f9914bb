package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/spawn"
	"github.com/carillonhq/carillon/pkg/task"
)

// confinement is what an attempt's process is bound by before its first
// instruction, as this host can have it. Its zero value is nothing.
type confinement struct {
	umask      int // of the spawner's thread while it forks; -1: the daemon's
	noNewPrivs bool
	private    bool   // /tmp and /var/tmp are its own
	slow       bool   // a step takes its time: others are not to wait for it
	steps      []step // taken while the process is held, before it becomes its user
	// maxProcesses is RLIMIT_NPROC, which the process sets when it has become its user.
	maxProcesses *unix.Rlimit
	report       bool // what cannot be enforced is told, else it forbids the start
	unsupported  []unsupportedField
}

// step does something to a process that is held. It must not block: other processes
// are created by the same thread.
type step struct {
	field string // which wants it: limits.open_files
	do    func(pid int) error
}

// unsupportedField is a field that cannot be enforced, and why.
type unsupportedField struct{ field, why string }

// cannotError means that this host cannot enforce what the attempt requires.
type cannotError []unsupportedField

func (e cannotError) Error() string {
	var words []string
	for i, l := range e {
		if slices.ContainsFunc(e[:i], func(before unsupportedField) bool { return before.why == l.why }) {
			continue // told with the first
		}

		var fields []string
		for _, other := range e[i:] {
			if other.why == l.why {
				fields = append(fields, other.field)
			}
		}

		words = append(words, strings.Join(fields, ", ")+": "+l.why)
	}

	return "this node cannot enforce " + strings.Join(words, "; ")
}

// addUnsupported notes that a field cannot be enforced. The error is nil if that is to be
// told and no more.
func (c *confinement) addUnsupported(field, format string, args ...any) error {
	l := unsupportedField{field, fmt.Sprintf(format, args...)}
	if !slices.Contains(c.unsupported, l) { // an attempt may be started twice, if its guardian dies
		c.unsupported = append(c.unsupported, l)
	}

	if c.report {
		return nil
	}

	return cannotError{l}
}

// requiredError is an error if something is required that cannot be.
func (c *confinement) requiredError() error {
	if len(c.unsupported) == 0 || c.report {
		return nil
	}
	return cannotError(c.unsupported)
}

// unenforcedFields are the fields that were not enforced, and that in words.
func (c *confinement) unenforcedFields() (fields []string, message string) {
	if len(c.unsupported) == 0 {
		return nil, ""
	}

	for _, l := range c.unsupported {
		fields = append(fields, l.field)
	}

	slices.Sort(fields)

	return slices.Compact(fields), strings.Replace(cannotError(c.unsupported).Error(), "this node cannot enforce", "not enforced:", 1)
}

// threadKind is which of the spawner's threads starts the process.
func (c *confinement) threadKind() (k int) {
	if c != nil && c.noNewPrivs {
		k |= unprivileged
	}

	if c != nil && (c.private || c.slow) {
		k |= slowStart
	}

	return k
}

// hasSteps reports whether the process has to be held for steps.
func (c *confinement) hasSteps() bool { return len(c.steps) > 0 }

// confine finds how the process is bound, without what others add to it. What is
// known to be impossible is noted; verdict says what follows.
func confine(p *task.Process, as account) (*confinement, error) {
	mask, err1 := task.ParseUmask("umask", p.Umask)
	io, err2 := task.ParseIONice("ionice", p.IONice)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}

	c := &confinement{umask: mask, noNewPrivs: p.NoNewPrivs, private: p.PrivateTmp, report: p.Enforce == task.EnforceReport}
	c.addLimits(p.Limits, as)
	c.addNice(p.Nice, as)
	c.addIONice(io, as)

	if !spawn.CanHold {
		for _, s := range c.steps {
			_ = c.addUnsupported(s.field, cannotHold)
		}
		c.steps, c.maxProcesses = nil, nil
	}

	if c.private && !(capable(unix.CAP_SYS_ADMIN) && capable(unix.CAP_SYS_CHROOT)) {
		c.private = false
		_ = c.addUnsupported("private_tmp", "the daemon may not mount: it takes root, with CAP_SYS_ADMIN and CAP_SYS_CHROOT")
	}

	return c, nil
}

// cannotHold is why nothing can be done to a process before it runs.
const cannotHold = "the daemon cannot hold a process at its start on this architecture"

// capable reports whether the daemon has one of root's capabilities. In a container
// root may lack some.
func capable(which int) bool {
	var data [2]unix.CapUserData
	if unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]) != nil {
		return false
	}
	return data[which/32].Effective>>(which%32)&1 == 1
}

// addLimits adds the kernel's limits of each single process.
func (c *confinement) addLimits(l task.Limits, as account) {
	if l == (task.Limits{}) {
		return
	}

	type wanted struct {
		field    string
		resource int
		soft     int64
		grace    int64 // of the hard limit
		is       bool
	}
	size := func(s *task.Size) (int64, bool) {
		if s == nil {
			return 0, false
		}
		return int64(*s), true
	}

	fileSize, hasFileSize := size(l.FileSize)
	core, hasCore := size(l.Core)
	for _, w := range []wanted{
		{"open_files", unix.RLIMIT_NOFILE, l.OpenFiles, 0, l.OpenFiles > 0},
		{"file_size", unix.RLIMIT_FSIZE, fileSize, 0, hasFileSize},
		{"core", unix.RLIMIT_CORE, core, 0, hasCore},
		{"processes", unix.RLIMIT_NPROC, l.Processes, 0, l.Processes > 0},
		{"stack", unix.RLIMIT_STACK, int64(l.Stack), 0, l.Stack > 0},
		{"address_space", unix.RLIMIT_AS, int64(l.AddressSpace), 0, l.AddressSpace > 0},
		{"cpu_time", unix.RLIMIT_CPU, int64(l.CPUTime.Std().Seconds()), int64(task.CPUTimeGrace.Seconds()), l.CPUTime > 0},
	} {
		if !w.is {
			continue
		}

		field := "limits." + w.field
		want := unix.Rlimit{Cur: uint64(w.soft), Max: uint64(w.soft + w.grace)}
		var own unix.Rlimit
		switch err := unix.Getrlimit(w.resource, &own); {
		case err != nil:
			_ = c.addUnsupported(field, "%s", err)
		case w.resource == unix.RLIMIT_NPROC && as.isRoot():
			_ = c.addUnsupported(field, "root is not bound by it; limits.pids is for that")
		case want.Max > own.Max && !capable(unix.CAP_SYS_RESOURCE):
			_ = c.addUnsupported(field, "the daemon's own limit is %d, and without CAP_SYS_RESOURCE it may not go beyond", own.Max)
		case as.isOther() && !capable(unix.CAP_SYS_RESOURCE):
			_ = c.addUnsupported(field, "without CAP_SYS_RESOURCE the daemon may not limit a process of another user")
		case w.resource == unix.RLIMIT_NPROC && as.isOther():
			c.limitProcesses(field, own, want)
		default:
			c.steps = append(c.steps, step{field, func(pid int) error { return unix.Prlimit(pid, w.resource, &want, nil) }})
		}
	}
}

// limitProcesses limits the processes of another user. If the limit held already when the
// process becomes that user, the kernel would refuse to execute for a user who has more
// processes. So the process sets it afterwards, when it has no right any more to raise the
// hard limit: that is raised here.
func (c *confinement) limitProcesses(field string, own, want unix.Rlimit) {
	c.maxProcesses = &want
	raised := unix.Rlimit{Cur: own.Cur, Max: max(own.Max, want.Max)}
	c.steps = append(c.steps, step{field, func(pid int) error { return unix.Prlimit(pid, unix.RLIMIT_NPROC, &raised, nil) }})
}

func (a account) isRoot() bool {
	if a.credential == nil {
		return os.Geteuid() == 0
	}
	return a.credential.Uid == 0
}

// isOther reports whether the account is not the daemon's.
func (a account) isOther() bool {
	return a.credential != nil && (int(a.credential.Uid) != os.Getuid() || int(a.credential.Gid) != os.Getgid())
}

func (c *confinement) addNice(n int, as account) {
	switch {
	case n == 0:
		return
	case capable(unix.CAP_SYS_NICE):
	case n < leastNice():
		_ = c.addUnsupported("nice", "without CAP_SYS_NICE the daemon may not go below %d", leastNice())
		return
	case as.isOther():
		_ = c.addUnsupported("nice", "without CAP_SYS_NICE the daemon may not change a process of another user")
		return
	}

	c.steps = append(c.steps, step{"nice", func(pid int) error { return unix.Setpriority(unix.PRIO_PROCESS, pid, n) }})
}

// leastNice is the most urgent that the kernel lets a user's processes become.
func leastNice() int {
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return task.MaxNice
	}

	now := 20 - raw // the system call says it so
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NICE, &l) == nil {
		now = min(now, 20-int(min(l.Cur, 40)))
	}

	return now
}

func (c *confinement) addIONice(n task.IONice, as account) {
	switch {
	case n.Class == 0:
		return
	case n.Class == task.IORealtime && !capable(unix.CAP_SYS_NICE) && !capable(unix.CAP_SYS_ADMIN):
		_ = c.addUnsupported("ionice", "realtime takes CAP_SYS_NICE")
		return
	case as.isOther() && !capable(unix.CAP_SYS_NICE):
		_ = c.addUnsupported("ionice", "without CAP_SYS_NICE the daemon may not change a process of another user")
		return
	}

	const who, classShift = 1, 13 // IOPRIO_WHO_PROCESS, IOPRIO_CLASS_SHIFT
	c.steps = append(c.steps, step{"ionice", func(pid int) error {
		_, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, who, uintptr(pid), uintptr(n.Class<<classShift|n.Level))
		if errno != 0 {
			return errno
		}
		return nil
	}})
}

// takeSteps does to a held process what is to be done to it. After an error it must not
// be released.
func (c *confinement) takeSteps(pid int) error {
	for _, s := range c.steps {
		if failed := s.do(pid); failed != nil {
			if err := c.addUnsupported(s.field, "%s", failed); err != nil {
				return err
			}
		}
	}

	return nil
}
