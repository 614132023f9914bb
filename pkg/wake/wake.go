// Package wake has the signal by which goroutines wake another one that looks for itself at what there is to do.
//
// A signal that nobody has received yet is not sent twice, and sending never blocks. So a receiver may find less to
// do than signals were sent, but after each signal it looks at least once: it must look at the state itself, and not
// count signals.
package wake

// Signal is a channel with one slot. Receive from it as from any channel.
type Signal chan struct{}

// NewSignal returns a signal that has not been sent.
func NewSignal() Signal { return make(Signal, 1) }

// Send wakes the receiver, now or when it receives next.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}
