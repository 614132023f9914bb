package task

// Facts are what a node measures of its host now and then. What it cannot measure
// is left out, and a selector that compares it does not match.
type Facts struct {
	CPUs       int      `json:"cpus,omitempty"`        // that the daemon may use: of a cgroup's quota the whole ones, at least 1
	HostCPUs   int      `json:"host_cpus,omitempty"`   // the machine's, to which the load belongs, if they are more
	Memory     int64    `json:"memory,omitempty"`      // bytes: the machine's, or the limit of the daemon's cgroup if that is less
	MemoryFree *int64   `json:"memory_free,omitempty"` // bytes that can be had without swapping
	Disk       int64    `json:"disk,omitempty"`        // bytes of the file system with the data directory
	DiskFree   *int64   `json:"disk_free,omitempty"`   // bytes of it that users who are not root can have
	Load1      *float64 `json:"load1,omitempty"`       // load averages over 1, 5 and 15 minutes: the machine's, in a container too
	Load5      *float64 `json:"load5,omitempty"`
	Load15     *float64 `json:"load15,omitempty"`
}

// The names of facts, as selectors and settings have them.
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

// FactNames are what a selector can compare of a node besides its labels.
func FactNames() []string {
	return []string{FactCPUs, FactMemory, FactMemoryFree, FactDisk, FactDiskFree, FactLoad1, FactLoad5, FactLoad15}
}

// Fact is the value of a fact; false if it is not known. Facts may be nil.
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

func measuredValue[T int64 | float64](v *T) (float64, bool) {
	if v == nil {
		return 0, false
	}
	return float64(*v), true
}
