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

// takeGroup is the control group of an attempt; nil if there are none, or none can be
// made: its processes are found in other ways then. If it has limits, that is for c to
// tell: an error, as those of join.
func (l *Runner) takeGroup(c *confinement, limits task.Limits) (*cgroup.Group, error) {
	if !l.groups.Any() {
		return nil, nil
	}

	wants := cgroupLimits(limits)
	group, err := l.groups.Take(wants)
	switch {
	case err == nil:
		if err = c.joinGroup(group, wants); err != nil {
			l.groups.Give(group)
			return nil, err
		}
		return group, nil
	case !wants.Any():
		l.log.Warn("an attempt has no control group", zap.Error(err))
		return nil, nil
	}

	if err := c.addUnsupported("limits", "%s", err); err != nil {
		return nil, err
	}

	return l.takeGroup(c, task.Limits{})
}

// checkGroupLimits notes what of the limits of all processes together this host cannot
// enforce.
func (c *confinement) checkGroupLimits(groups *cgroup.Groups, l task.Limits) {
	for _, limit := range groups.Lacks(cgroupLimits(l)) {
		why := "the control group of the host that counts it is not there"
		if err := groups.Why(); err != nil {
			why = err.Error()
		}
		_ = c.addUnsupported("limits."+limit, "%s", why) // verdict says what follows
	}
}

// joinGroup has the process enter what of its control group it cannot be started in. Where
// no process can be held at its start, that is impossible, which matters if it has limits.
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

// explainLimits says of an attempt that a limit is why it failed. One whose limits.memory the
// kernel upheld by killing failed, whatever the rest of it made of that: with cgroup v2
// there is no rest.
func (r *Result) explainLimits(l task.Limits, u cgroup.Usage, mainCPU time.Duration) {
	if u.OOMKills > 0 && (l.Memory > 0 || r.State == task.Failed) {
		why := "the host, or what limits the agent, had no more"
		if l.Memory > 0 && u.MemoryFull {
			why = "limits.memory is " + l.Memory.String()
		}

		how := cmp.Or(r.Message, fmt.Sprintf("%s of it %s killed", processCount(u.OOMKills), was(u.OOMKills)))
		r.State, r.Reason, r.Message = task.Failed, task.ReasonOOM, "out of memory: "+why+"; "+how

		return
	}

	if r.State != task.Failed {
		return
	}

	switch {
	case l.CPUTime > 0 && (r.diedOf(unix.SIGXCPU) || r.diedOf(unix.SIGKILL) && mainCPU > (l.CPUTime.Std()+task.CPUTimeGrace-time.Second)):
		r.Reason = task.ReasonLimits
		r.Message = fmt.Sprintf("a process took more processor time than limits.cpu_time, %s; %s", l.CPUTime, r.Message)
	case l.FileSize != nil && r.diedOf(unix.SIGXFSZ):
		r.Reason = task.ReasonLimits
		r.Message = fmt.Sprintf("it wrote a file larger than limits.file_size, %s; %s", *l.FileSize, r.Message)
	case u.Refused > 0 && l.PIDs > 0:
		r.Message = fmt.Sprintf("%s; limits.pids, %d, refused it %s", r.Message, l.PIDs, processCount(u.Refused))
	case u.Refused > 0:
		r.Message = fmt.Sprintf("%s; what limits the agent refused it %s", r.Message, processCount(u.Refused))
	}
}

// diedOf reports whether a signal ended the main process, or, as a shell says it, one
// that this waited for.
func (r *Result) diedOf(s syscall.Signal) bool {
	return r.Signal == signalName(s) || r.ExitCode != nil && *r.ExitCode == 128+int(s)
}

func processCount(n int64) string {
	if n == 1 {
		return "a process"
	}
	return fmt.Sprintf("%d processes", n)
}

func was(n int64) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

// cgroupLimits are those of the limits that control groups enforce.
func cgroupLimits(l task.Limits) cgroup.Limits {
	c := cgroup.Limits{Memory: int64(l.Memory), CPU: l.CPU, PIDs: l.PIDs}
	if l.Swap != nil {
		c.Swap = (*int64)(l.Swap)
	}
	return c
}
