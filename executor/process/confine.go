package process

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/spawn"
	"github.com/carillonhq/carillon/pkg/task"
)

// confinement holds the restrictions that are in force before the first instruction of an attempt's
// program, as far as this host can enforce them. A nil confinement restricts nothing.
type confinement struct {
	umask      int    // the umask of the spawner's thread while it forks; -1: the daemon's
	noNewPrivs bool   // forked by a thread that has no_new_privs
	private    bool   // the process has a /tmp and a /var/tmp of its own
	slow       bool   // a step may take milliseconds, so the start uses a separate thread
	steps      []step // executed while the process is held, before it changes its user
	// maxProcesses is RLIMIT_NPROC. The process sets it itself after it has changed its user; see limitProcesses.
	maxProcesses *unix.Rlimit
	report       bool               // settings that cannot be enforced are only reported; otherwise they fail the start
	unsupported  []unsupportedField // the settings that this host cannot enforce
}

// step changes a process that is held. It must not block, because the same thread
// creates other processes.
type step struct {
	field string // the field of the task that requires it, such as limits.open_files
	do    func(pid int) error
}

// unsupportedField is a field of a task that this host cannot enforce, and the reason.
type unsupportedField struct{ field, why string }

// unenforceableError means that this host cannot enforce settings that the attempt requires. It is not empty.
type unenforceableError []unsupportedField

// Error groups the fields by reason, so that no reason is repeated.
func (e unenforceableError) Error() string {
	var words []string
	for i, l := range e {
		if slices.ContainsFunc(e[:i], func(before unsupportedField) bool { return before.why == l.why }) {
			continue // listed with the first field that has this reason
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

// addUnsupported records that a field cannot be enforced. It returns nil if the task only wants a report, and a
// unenforceableError otherwise.
func (c *confinement) addUnsupported(field, format string, args ...any) error {
	l := unsupportedField{field, fmt.Sprintf(format, args...)}
	if !slices.Contains(c.unsupported, l) { // a start is repeated if the guardian dies during the first one
		c.unsupported = append(c.unsupported, l)
	}

	if c.report {
		return nil
	}

	return unenforceableError{l}
}

// requiredError returns an unenforceableError with all fields that cannot be enforced. It returns nil if there are none or if
// the task only wants a report.
func (c *confinement) requiredError() error {
	if len(c.unsupported) == 0 || c.report {
		return nil
	}
	return unenforceableError(c.unsupported)
}

// unenforcedFields returns the fields that were not enforced, sorted and without duplicates, and a message that
// names them with the reasons.
func (c *confinement) unenforcedFields() (fields []string, message string) {
	if len(c.unsupported) == 0 {
		return nil, ""
	}

	for _, l := range c.unsupported {
		fields = append(fields, l.field)
	}

	slices.Sort(fields)

	return slices.Compact(fields), strings.Replace(unenforceableError(c.unsupported).Error(), "this node cannot enforce", "not enforced:", 1)
}

// threadKind returns the kind of the spawner's thread that must start the process.
func (c *confinement) threadKind() (k int) {
	if c != nil && c.noNewPrivs {
		k |= stateNoNewPrivs
	}

	if c != nil && (c.private || c.slow) {
		k |= slowStart
	}

	return k
}

// hasSteps reports whether the process has to be held at its start, so that steps can be executed.
func (c *confinement) hasSteps() bool { return len(c.steps) > 0 }

// planConfinement returns the confinement of a process, without the limits of its control group. It records settings that
// cannot be enforced here; requiredError decides about them. An error means that a setting cannot be parsed.
func planConfinement(p *task.Process, as account) (*confinement, error) {
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
		// Without held processes, no step can be executed before the first instruction.
		for _, s := range c.steps {
			_ = c.addUnsupported(s.field, cannotHold)
		}
		c.steps, c.maxProcesses = nil, nil
	}

	if c.private && !(hasCapability(unix.CAP_SYS_ADMIN) && hasCapability(unix.CAP_SYS_CHROOT)) {
		c.private = false
		_ = c.addUnsupported("private_tmp", "the daemon cannot mount: this requires root with CAP_SYS_ADMIN and CAP_SYS_CHROOT")
	}

	return c, nil
}

// cannotHold is the reason for unsupported settings that need a held process.
const cannotHold = "the daemon cannot hold a process at its start on this architecture"

// hasCapability reports whether the daemon has a capability in its effective set. In a container,
// even root may lack some.
func hasCapability(which int) bool {
	var data [2]unix.CapUserData
	if unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]) != nil {
		return false
	}
	return data[which/32].Effective>>(which%32)&1 == 1
}

// addLimits adds the limits that the kernel applies to each process separately (rlimits).
func (c *confinement) addLimits(l task.Limits, as account) {
	if l == (task.Limits{}) {
		return
	}

	type wanted struct {
		field    string
		resource int
		soft     int64
		grace    int64 // the hard limit is higher than the soft one by this much
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
		// The checks follow the kernel's for prlimit, so that a limit that cannot be set is known before the fork.
		var own unix.Rlimit
		switch err := unix.Getrlimit(w.resource, &own); {
		case err != nil:
			_ = c.addUnsupported(field, "%s", err)
		case w.resource == unix.RLIMIT_NPROC && as.isRoot():
			_ = c.addUnsupported(field, "the limit does not apply to root; use limits.pids")
		case want.Max > own.Max && !hasCapability(unix.CAP_SYS_RESOURCE):
			_ = c.addUnsupported(field, "the daemon's own limit is %d, and without CAP_SYS_RESOURCE it cannot exceed that", own.Max)
		case as.isOther() && !hasCapability(unix.CAP_SYS_RESOURCE):
			_ = c.addUnsupported(field, "without CAP_SYS_RESOURCE, the daemon cannot limit a process of another user")
		case w.resource == unix.RLIMIT_NPROC && as.isOther():
			c.limitProcesses(field, own, want)
		default:
			c.steps = append(c.steps, step{field, func(pid int) error { return unix.Prlimit(pid, w.resource, &want, nil) }})
		}
	}
}

// limitProcesses limits the processes of another user. If the limit applied when the
// process changes to a user with more processes than that, the kernel would refuse the execve.
// So the process sets the limit after the change. By then it may not raise its
// hard limit any more, so a step raises that before.
func (c *confinement) limitProcesses(field string, own, want unix.Rlimit) {
	c.maxProcesses = &want
	raised := unix.Rlimit{Cur: own.Cur, Max: max(own.Max, want.Max)}
	c.steps = append(c.steps, step{field, func(pid int) error { return unix.Prlimit(pid, unix.RLIMIT_NPROC, &raised, nil) }})
}

// isRoot reports whether the process runs as root.
func (a account) isRoot() bool {
	if a.credential == nil {
		return os.Geteuid() == 0
	}
	return a.credential.Uid == 0
}

// isOther reports whether the account has another user or group than the daemon.
func (a account) isOther() bool {
	return a.credential != nil && (int(a.credential.Uid) != os.Getuid() || int(a.credential.Gid) != os.Getgid())
}

// addNice adds the scheduling priority.
func (c *confinement) addNice(n int, as account) {
	switch {
	case n == 0:
		return
	case hasCapability(unix.CAP_SYS_NICE):
	case n < leastNice():
		_ = c.addUnsupported("nice", "without CAP_SYS_NICE, the daemon cannot set a value below %d", leastNice())
		return
	case as.isOther():
		_ = c.addUnsupported("nice", "without CAP_SYS_NICE, the daemon cannot change a process of another user")
		return
	}

	c.steps = append(c.steps, step{"nice", func(pid int) error { return unix.Setpriority(unix.PRIO_PROCESS, pid, n) }})
}

// leastNice returns the lowest nice value that the daemon may set without CAP_SYS_NICE: its own, or what
// RLIMIT_NICE allows if that is lower.
func leastNice() int {
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return task.MaxNice
	}

	now := 20 - raw // the raw system call returns 20 - nice
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NICE, &l) == nil {
		now = min(now, 20-int(min(l.Cur, 40)))
	}

	return now
}

// addIONice adds the I/O priority.
func (c *confinement) addIONice(n task.IONice, as account) {
	switch {
	case n.Class == 0:
		return
	case n.Class == task.IORealtime && !hasCapability(unix.CAP_SYS_NICE) && !hasCapability(unix.CAP_SYS_ADMIN):
		_ = c.addUnsupported("ionice", "realtime requires CAP_SYS_NICE")
		return
	case as.isOther() && !hasCapability(unix.CAP_SYS_NICE):
		_ = c.addUnsupported("ionice", "without CAP_SYS_NICE, the daemon cannot change a process of another user")
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

// takeSteps executes the steps on a held process. After an error the process must be killed and not
// released, because a required setting is missing.
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

// takeGroup returns a control group for an attempt. It returns nil if the host has none or none can be
// created; the attempt's processes are then found in other ways. If the attempt has limits that need the group,
// c decides whether that is an error or only reported.
func (ru *Runner) takeGroup(c *confinement, limits task.Limits) (*cgroup.Group, error) {
	if !ru.groups.Any() {
		return nil, nil
	}

	wants := cgroupLimits(limits)
	group, err := ru.groups.Acquire(wants)
	switch {
	case err == nil:
		if err = c.joinGroup(group, wants); err != nil {
			ru.groups.Release(group)
			return nil, err
		}
		return group, nil
	case !wants.Any():
		ru.log.Warn("an attempt runs without a control group", zap.Error(err))
		return nil, nil
	}

	if err := c.addUnsupported("limits", "%s", err); err != nil {
		return nil, err
	}

	// The task accepts that its limits are not enforced. A group without limits still finds its processes.
	return ru.takeGroup(c, task.Limits{})
}

// checkGroupLimits records those limits on all processes together that this host cannot
// enforce, with the reason.
func (c *confinement) checkGroupLimits(groups *cgroup.Groups, l task.Limits) {
	for _, limit := range groups.Unsupported(cgroupLimits(l)) {
		why := "the control group that counts it does not exist"
		if err := groups.LimitsError(); err != nil {
			why = err.Error()
		}
		_ = c.addUnsupported("limits."+limit, "%s", why) // requiredError reports it
	}
}

// joinGroup adds a step that moves the process into those parts of its control group in which it cannot be started,
// which are cgroup v1 controllers. If processes cannot be held at their start, this is impossible; it is an
// unsupported setting only if the attempt has limits.
func (c *confinement) joinGroup(group *cgroup.Group, l cgroup.Limits) error {
	if !group.Joins() {
		return nil
	}

	if spawn.CanHold {
		c.steps, c.slow = append(c.steps, step{"limits", group.Join}), true
	} else if l.Any() {
		return c.addUnsupported("limits", cannotHold)
	}

	return nil
}

// explainLimits adds to the result that a limit is the reason why the attempt failed. An attempt in which the kernel
// killed a process to enforce limits.memory has failed, even if its main process ended with success: with
// cgroup v2, the kernel kills the whole group, and both should have the same outcome.
func (r *Result) explainLimits(l task.Limits, u cgroup.Usage, mainCPU time.Duration) {
	if u.OOMKills > 0 && (l.Memory > 0 || r.State == task.Failed) {
		why := "the host or the limit of the agent was exhausted"
		if l.Memory > 0 && u.MemoryFull {
			why = "limits.memory is " + l.Memory.String()
		}

		how := cmp.Or(r.Message, fmt.Sprintf("%s %s killed", processCount(u.OOMKills), wasOrWere(u.OOMKills)))
		r.State, r.Reason, r.Message = task.Failed, task.ReasonOOM, "out of memory: "+why+"; "+how

		return
	}

	if r.State != task.Failed {
		return
	}

	switch {
	// The kernel sends SIGXCPU at the soft limit and SIGKILL at the hard one. A SIGKILL without that much processor
	// time has another reason.
	case l.CPUTime > 0 && (r.diedOf(unix.SIGXCPU) || r.diedOf(unix.SIGKILL) && mainCPU > (l.CPUTime.Std()+task.CPUTimeGrace-time.Second)):
		r.Reason = task.ReasonLimits
		r.Message = fmt.Sprintf("a process used more CPU time than limits.cpu_time (%s); %s", l.CPUTime, r.Message)
	case l.FileSize != nil && r.diedOf(unix.SIGXFSZ):
		r.Reason = task.ReasonLimits
		r.Message = fmt.Sprintf("a process wrote a file larger than limits.file_size (%s); %s", *l.FileSize, r.Message)
	case u.Refused > 0 && l.PIDs > 0:
		r.Message = fmt.Sprintf("%s; limits.pids (%d) prevented the start of %s", r.Message, l.PIDs, processCount(u.Refused))
	case u.Refused > 0:
		r.Message = fmt.Sprintf("%s; the limit of the agent prevented the start of %s", r.Message, processCount(u.Refused))
	}
}

// diedOf reports whether the signal ended the main process, or a child of a shell, which then exits with 128 plus
// the number of the signal.
func (r *Result) diedOf(s syscall.Signal) bool {
	return r.Signal == signalName(s) || r.ExitCode != nil && *r.ExitCode == 128+int(s)
}

func processCount(n int64) string {
	if n == 1 {
		return "a process"
	}
	return fmt.Sprintf("%d processes", n)
}

func wasOrWere(n int64) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

// cgroupLimits returns those limits that control groups enforce.
func cgroupLimits(l task.Limits) cgroup.Limits {
	c := cgroup.Limits{Memory: int64(l.Memory), CPU: l.CPU, PIDs: l.PIDs}
	if l.Swap != nil {
		c.Swap = (*int64)(l.Swap)
	}
	return c
}
