package connlimit

// Process is a process of this host that has connected to a unix socket.
type Process struct {
	// PID is its number. 0: this process cannot see it, because it is in another PID namespace.
	PID int
	// PIDFD refers to the process. -1: the kernel has no pidfds.
	PIDFD int
	// Certain reports that the kernel has recorded the process itself, and not only its number. Otherwise the process may
	// have ended since it connected, and the number and PIDFD may belong to a later one.
	Certain bool
}
