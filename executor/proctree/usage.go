package proctree

import (
	"cmp"
	"syscall"
	"time"

	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/task"
)

// mainUsage is the resource usage that wait4 returns for the main process, including the descendants that it has
// reaped itself.
type mainUsage struct {
	cpu           time.Duration
	largest       int64 // bytes, of the largest process; 0: not known
	read, written int64 // bytes from and to storage
}

// sectorSize is the unit in bytes in which the kernel counts block I/O of a process.
const sectorSize = 512

// mainUsageOf converts the result of wait4.
func mainUsageOf(u syscall.Rusage) mainUsage {
	return mainUsage{
		cpu:     time.Duration(u.Utime.Nano() + u.Stime.Nano()),
		largest: meaningfulPeak(u.Maxrss << 10),
		read:    u.Inblock * sectorSize, written: u.Oublock * sectorSize,
	}
}

// meaningfulPeak returns the peak memory of a child in bytes if it is meaningful, and 0 otherwise. A child shares this
// process's memory until it executes its program, and the kernel counts that memory as the child's. So a peak
// that does not exceed this process's own peak says nothing about the program. The kernel's counters are
// not exact, so a peak must exceed it by a sixteenth.
func meaningfulPeak(peak int64) int64 {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil || peak <= (own.Maxrss+own.Maxrss>>4)<<10 {
		return 0
	}
	return peak
}

// MainReaped records that the main process was reaped, with its resource usage. From now on its number may be reused.
func (t *Tree) MainReaped(took syscall.Rusage) { t.reaped, t.mainUsage = true, mainUsageOf(took) }

// MainCPU returns the processor time of the main process and of the descendants that it has reaped. It is 0 before
// MainReaped.
func (t *Tree) MainCPU() time.Duration { return t.mainUsage.cpu }

// Usage returns the resources that the tree has used, and the counters of its control group, which show whether limits
// were reached. Without a group, the former covers only what MainReaped received.
func (t *Tree) Usage() (task.Usage, cgroup.Usage) {
	var u cgroup.Usage
	if t.Group != nil {
		u = t.Group.Usage()
	}

	return task.Usage{
		CPUMS:      max(u.CPU, t.mainUsage.cpu).Round(time.Millisecond).Milliseconds(),
		MemoryPeak: cmp.Or(u.MemoryPeak, t.mainUsage.largest),
		IORead:     t.mainUsage.read, IOWritten: t.mainUsage.written,
	}, u
}
