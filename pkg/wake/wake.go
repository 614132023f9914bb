// Package wake provides a signal by which goroutines wake another one, which then checks the state for work.
//
// Sending never blocks, and a signal that was not received yet is not sent twice. So several sends may cause one
// receive, but after each send there is at least one. The receiver must check the state and must not
// count signals. Do not use a Signal to pass values, or to wake several goroutines: each send wakes one.
//
// The package is small because it imports nothing, so every package can use it.
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
