package process

import (
	"cmp"
	"fmt"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/spawn"
	"github.com/carillonhq/carillon/pkg/task"
)

// takeGroup returns a control group for an attempt. It returns nil if the host has none or none can be
// created; the attempt's processes are then found in other ways. If the attempt has limits that need the group,
// c decides whether that is an error or only reported.
func (l *Runner) takeGroup(c *confinement, limits task.Limits) (*cgroup.Group, error) {
	if !l.groups.Any() {
		return nil, nil
	}

	wants := cgroupLimits(limits)
	group, err := l.groups.Acquire(wants)
	switch {
	case err == nil:
		if err = c.joinGroup(group, wants); err != nil {
			l.groups.Release(group)
			return nil, err
		}
		return group, nil
	case !wants.Any():
		l.log.Warn("an attempt runs without a control group", zap.Error(err))
		return nil, nil
	}

	if err := c.addUnsupported("limits", "%s", err); err != nil {
		return nil, err
	}

	// The task accepts that its limits are not enforced. A group without limits still finds its processes.
	return l.takeGroup(c, task.Limits{})
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
