package task

// Usage is what the processes of an attempt took. What is 0 is less than the
// unit, or not known.
type Usage struct {
	CPUMS      int64 `json:"cpu_ms,omitempty"`      // processors' time, in milliseconds
	MemoryPeak int64 `json:"memory_peak,omitempty"` // bytes: of all processes with limits.memory, else of the largest
	IORead     int64 `json:"io_read,omitempty"`     // bytes from storage
	IOWritten  int64 `json:"io_written,omitempty"`  // bytes to storage
}
