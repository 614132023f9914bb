package eventlog

// SetRingSize changes how many events the rings of a hub keep that opens from now on.
func (h *Hub) SetRingSize(n int) { h.ringSize = n }

// Linger is how long a hub stays open without readers.
const Linger = hubLinger
