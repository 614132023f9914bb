package proctree

import (
	"cmp"
	"syscall"
	"time"

	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/task"
)

// taken is what wait4 tells of the main process, with those that it has reaped,
// and those that these had.
type taken struct {
	cpu           time.Duration
	largest       int64 // bytes, of the largest process; 0: not known
	read, written int64 // bytes from and to storage
}

// sectorSize is what the kernel counts a process's storage in.
const sectorSize = 512

func takenOf(u syscall.Rusage) taken {
	return taken{
		cpu:     time.Duration(u.Utime.Nano() + u.Stime.Nano()),
		largest: beyondOwn(u.Maxrss << 10),
		read:    u.Inblock * sectorSize, written: u.Oublock * sectorSize,
	}
}

// beyondOwn is the most memory that a child is said to have had, if that tells
// anything, else 0. A child shares this process's memory until it executes its
// program, and the kernel counts that as the child's: what is not beyond the most
// that this process ever had may be this process's own. The sixteenth more is for
// counters that are not exact.
func beyondOwn(peak int64) int64 {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil || peak <= (own.Maxrss+own.Maxrss>>4)<<10 {
		return 0
	}
	return peak
}

// MainReaped notes that the main process has been waited for: its number may be another's from now on.
func (t *Tree) MainReaped(took syscall.Rusage) { t.reaped, t.took = true, takenOf(took) }

// MainCPU is the processor time of the main process, and of those that it has waited for; 0 before MainReaped.
func (t *Tree) MainCPU() time.Duration { return t.took.cpu }

// Usage is what the tree took, and what its control group says of limits.
func (t *Tree) Usage() (task.Usage, cgroup.Usage) {
	var u cgroup.Usage
	if t.Group != nil {
		u = t.Group.Usage()
	}

	return task.Usage{
		CPUMS:      max(u.CPU, t.took.cpu).Round(time.Millisecond).Milliseconds(),
		MemoryPeak: cmp.Or(u.MemoryPeak, t.took.largest),
		IORead:     t.took.read, IOWritten: t.took.written,
	}, u
}
