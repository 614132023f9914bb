package executor

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
	largest       int64 // bytes, of the largest process
	read, written int64 // bytes from and to storage
}

// sector is what the kernel counts a process's storage in.
const sector = 512

func takenOf(u syscall.Rusage) taken {
	return taken{
		cpu:     time.Duration(u.Utime.Nano() + u.Stime.Nano()),
		largest: u.Maxrss << 10,
		read:    u.Inblock * sector, written: u.Oublock * sector,
	}
}

// usage is what the tree took, and what its control group says of limits.
func (t *tree) usage() (task.Usage, cgroup.Usage) {
	var u cgroup.Usage
	if t.group != nil {
		u = t.group.Usage()
	}
	return task.Usage{
		CPUMS:      max(u.CPU, t.took.cpu).Round(time.Millisecond).Milliseconds(),
		MemoryPeak: cmp.Or(u.MemoryPeak, t.took.largest),
		IORead:     t.took.read, IOWritten: t.took.written,
	}, u
}
