package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
)

// Limits apply to all processes of a group together. A zero value means no limit.
type Limits struct {
	Memory int64   // bytes
	Swap   *int64  // bytes; nil: no limit
	CPU    float64 // processors, such as 1.5
	PIDs   int64   // processes and threads
}

// Any reports whether there is a limit.
func (l Limits) Any() bool { return l.Memory > 0 || l.Swap != nil || l.CPU > 0 || l.PIDs > 0 }

// eachController calls f for each limit, with the controller that it needs and its name.
func (l Limits) eachController(f func(controller, limit string)) {
	if l.Memory > 0 {
		f("memory", "memory")
	}

	if l.Swap != nil {
		f("memory", "swap")
	}

	if l.CPU > 0 {
		f("cpu", "cpu")
	}

	if l.PIDs > 0 {
		f("pids", "pids")
	}
}

// cpuPeriod is the period of the CPU limit in µs. It is the kernel's default.
const cpuPeriod = 100_000

// cpuQuota returns the processor time in each period in µs. The kernel accepts no less than 1 ms.
func (l Limits) cpuQuota() int64 { return max(1000, int64(math.Round(l.CPU*cpuPeriod))) }

// setV2 writes the limits of a v2 group.
func (l Limits) setV2(dir string) error {
	var errs []error
	set := func(file, value string) {
		if err := writeFile(dir, file, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		}
	}

	if l.Memory > 0 {
		set("memory.max", strconv.FormatInt(l.Memory, 10))
		// Kill the whole group if memory is exhausted, because an attempt rarely continues correctly without one of
		// its processes. The file does not exist before Linux 4.19.
		if err := writeFile(dir, "memory.oom.group", "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}

	if l.Swap != nil {
		set("memory.swap.max", strconv.FormatInt(*l.Swap, 10))
	}

	if l.CPU > 0 {
		set("cpu.max", fmt.Sprintf("%d %d", l.cpuQuota(), cpuPeriod))
	}

	if l.PIDs > 0 {
		set("pids.max", strconv.FormatInt(l.PIDs, 10))
	}

	return errors.Join(errs...)
}

// setV1 writes the limits of one v1 controller.
func (l Limits) setV1(dir, controller string) error {
	var errs []error
	set := func(file string, value int64) {
		if err := writeFile(dir, file, strconv.FormatInt(value, 10)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		}
	}

	switch controller {
	case "memory":
		if l.Memory > 0 {
			set("memory.limit_in_bytes", l.Memory)
		}

		if l.Swap != nil {
			set("memory.memsw.limit_in_bytes", l.Memory+*l.Swap) // v1 limits memory and swap together
		}
	case "cpu":
		if l.CPU > 0 {
			set("cpu.cfs_period_us", cpuPeriod)
			set("cpu.cfs_quota_us", l.cpuQuota())
		}
	case "pids":
		if l.PIDs > 0 {
			set("pids.max", l.PIDs)
		}
	}

	return errors.Join(errs...)
}
