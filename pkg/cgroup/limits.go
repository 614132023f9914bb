package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
)

// Limits hold for all processes of a group together. What is zero is not limited.
type Limits struct {
	Memory int64   // bytes
	Swap   *int64  // bytes; nil: as much as there is
	CPU    float64 // processors' time: 1.5
	PIDs   int64   // processes and threads
}

// Any reports whether anything is limited.
func (l Limits) Any() bool { return l.Memory > 0 || l.Swap != nil || l.CPU > 0 || l.PIDs > 0 }

// eachController calls f for each controller that the limits need, and the name of the limit.
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

// cpuPeriod is what the CPU limit is counted in, the kernel's default: in µs.
const cpuPeriod = 100_000

// cpuQuota is the part of a period; the kernel takes no less than 1 ms.
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
		// One process less is no attempt that goes on, as a rule. Before Linux 4.19 there is none.
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

// setV1 writes the limits of one controller's group.
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
			set("memory.memsw.limit_in_bytes", l.Memory+*l.Swap) // both together
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
