package task

// Usage is the resources that the processes of an attempt used. 0 means less than the unit, or unknown.
type Usage struct {
	CPUMS      int64 `json:"cpu_ms,omitempty"`      // CPU time in milliseconds
	MemoryPeak int64 `json:"memory_peak,omitempty"` // bytes: of all processes if limits.memory is set, otherwise of the largest process
	IORead     int64 `json:"io_read,omitempty"`     // bytes read from storage
	IOWritten  int64 `json:"io_written,omitempty"`  // bytes written to storage
}
