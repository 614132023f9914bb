package bench

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine describes where a benchmark ran.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`  // that this process may use
	Memory int64  `json:"memory"` // in bytes
	OS     string `json:"os"`
}

// String formats the machine on one line.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %.1f GiB, %s", m.CPU, m.Cores, float64(m.Memory)/(1<<30), m.OS)
}

// thisMachine reads the properties of this machine. What the system does not provide is "unknown".
func thisMachine() Machine {
	m := Machine{CPU: "unknown", Cores: runtime.GOMAXPROCS(0), OS: runtime.GOOS + "/" + runtime.GOARCH}
	if model := fileField("/proc/cpuinfo", "model name", ":"); model != "" {
		m.CPU = model
	}

	if kib, _, _ := strings.Cut(fileField("/proc/meminfo", "MemTotal", ":"), " "); kib != "" {
		n, _ := strconv.ParseInt(kib, 10, 64)
		m.Memory = n << 10
	}

	if pretty := strings.Trim(fileField("/etc/os-release", "PRETTY_NAME", "="), `"`); pretty != "" {
		m.OS = pretty
	}

	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.OS += ", " + unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}

	return m
}

// fileField returns the value of the first line of a file that begins with a name, or "".
func fileField(path, name, separator string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}

	for line := range strings.Lines(string(b)) {
		if n, v, ok := strings.Cut(line, separator); ok && strings.TrimSpace(n) == name {
			return strings.TrimSpace(v)
		}
	}

	return ""
}

// fileSystem names the file system of a directory. On tmpfs, syncs cost nothing, so the figures are of little
// value.
func fileSystem(dir string) string {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return "unknown file system"
	}

	switch int64(s.Type) {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs: its syncs cost nothing"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay"
	}

	return fmt.Sprintf("file system %#x", s.Type)
}

// residentMemory returns the resident memory of this process in bytes; 0 if the system does not provide it.
func residentMemory() int64 {
	kib, _, _ := strings.Cut(fileField("/proc/self/status", "VmRSS", ":"), " ")
	n, _ := strconv.ParseInt(kib, 10, 64)
	return n << 10
}

// cpuTime returns the CPU time that this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
