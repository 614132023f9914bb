package executor

import (
	"fmt"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/task"
)

// takeGroup is the control group of an attempt; nil if there are none, or if it has no
// limits and none can be made: its processes are found in other ways then.
func (l *launcher) takeGroup(limits task.Limits) (*cgroup.Group, error) {
	if !l.groups.Any() {
		return nil, nil
	}
	wants := cgroupLimits(limits)
	group, err := l.groups.Take(wants)
	if err != nil && !wants.Any() {
		l.log.Warn("an attempt has no control group", zap.Error(err))
		return nil, nil
	}
	return group, err
}

// together notes what of the limits of all processes together this host cannot
// enforce.
func (c *confinement) together(groups *cgroup.Groups, l task.Limits) {
	for _, limit := range groups.Lacks(cgroupLimits(l)) {
		why := "the control group of the host that counts it is not there"
		if err := groups.Why(); err != nil {
			why = err.Error()
		}
		_ = c.cannot("limits."+limit, "%s", why) // verdict says what follows
	}
}

// join has the process enter what of its control group it cannot be started in. Where
// no process can be held at its start, that cannot be: it matters if it has limits.
func (c *confinement) join(group *cgroup.Group, l task.Limits) error {
	if group == nil || !group.Joins() {
		return nil
	}
	if why := untraceable(); why == "" {
		c.steps = append(c.steps, step{"limits", group.Join})
	} else if cgroupLimits(l).Any() {
		return c.cannot("limits", "%s", why)
	}
	return nil
}

// meet says of an attempt that failed that a limit is why, and of another that
// processes of it were killed for memory.
func (r *Result) meet(l task.Limits, u cgroup.Usage) {
	if r.State != task.Failed {
		if u.OOMKills > 0 && r.Message == "" { // it came to its end without what was killed
			r.Message = fmt.Sprintf("%s of it %s killed: out of memory, limits.memory is %s", processCount(u.OOMKills), was(u.OOMKills), l.Memory)
		}
		return
	}
	how := r.Message
	switch {
	case u.OOMKills > 0:
		r.Reason = task.ReasonOOM
		r.Message = fmt.Sprintf("out of memory: limits.memory is %s; %s", l.Memory, how)
	case l.CPUTime > 0 && (r.Signal == signalName(unix.SIGXCPU) || r.Signal == signalName(unix.SIGKILL) && r.Usage.CPUMS >= l.CPUTime.Std().Milliseconds()):
		r.Reason = task.ReasonLimits
		r.Message = fmt.Sprintf("a process took more processor time than limits.cpu_time, %s; %s", l.CPUTime, how)
	case r.Signal == signalName(unix.SIGXFSZ) && l.FileSize != nil:
		r.Reason = task.ReasonLimits
		r.Message = fmt.Sprintf("it wrote a file larger than limits.file_size, %s; %s", *l.FileSize, how)
	case u.Refused > 0:
		r.Message = fmt.Sprintf("%s; limits.pids, %d, refused it %s", how, l.PIDs, processCount(u.Refused))
	}
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
