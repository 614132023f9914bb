package task

// Facts are measurements of a node's host. A fact that the node cannot measure is absent, and a selector that
// compares it does not match.
type Facts struct {
	CPUs       int      `json:"cpus,omitempty"`        // CPUs that the daemon may use: the whole CPUs of a cgroup quota, at least 1
	HostCPUs   int      `json:"host_cpus,omitempty"`   // CPUs of the machine, to which the load refers; only if they are more than CPUs
	Memory     int64    `json:"memory,omitempty"`      // bytes: of the machine, or the limit of the daemon's cgroup if that is less
	MemoryFree *int64   `json:"memory_free,omitempty"` // bytes that are available without swapping
	Disk       int64    `json:"disk,omitempty"`        // bytes: the size of the file system with the data directory
	DiskFree   *int64   `json:"disk_free,omitempty"`   // bytes of it that are available to users other than root
	Load1      *float64 `json:"load1,omitempty"`       // load averages over 1, 5 and 15 minutes, always of the whole machine
	Load5      *float64 `json:"load5,omitempty"`
	Load15     *float64 `json:"load15,omitempty"`
}

// The names of facts in selectors and settings.
const (
	FactCPUs       = "cpus"
	FactMemory     = "memory"
	FactMemoryFree = "memory_free"
	FactDisk       = "disk"
	FactDiskFree   = "disk_free"
	FactLoad1      = "load1"
	FactLoad5      = "load5"
	FactLoad15     = "load15"
)

// FactNames returns the facts of a node that a selector can compare.
func FactNames() []string {
	return []string{FactCPUs, FactMemory, FactMemoryFree, FactDisk, FactDiskFree, FactLoad1, FactLoad5, FactLoad15}
}

// Fact returns the value of a fact, and false if it is not known. f may be nil.
func (f *Facts) Fact(name string) (float64, bool) {
	if f == nil {
		return 0, false
	}

	switch name {
	case FactCPUs:
		return float64(f.CPUs), f.CPUs > 0
	case FactMemory:
		return float64(f.Memory), f.Memory > 0
	case FactMemoryFree:
		return measuredValue(f.MemoryFree)
	case FactDisk:
		return float64(f.Disk), f.Disk > 0
	case FactDiskFree:
		return measuredValue(f.DiskFree)
	case FactLoad1:
		return measuredValue(f.Load1)
	case FactLoad5:
		return measuredValue(f.Load5)
	case FactLoad15:
		return measuredValue(f.Load15)
	}

	return 0, false
}

// measuredValue returns the value of a fact that may be absent.
func measuredValue[T int64 | float64](v *T) (float64, bool) {
	if v == nil {
		return 0, false
	}
	return float64(*v), true
}
