// Package clockguard judges whether a node's wall clock can be trusted.
//
// It is pure: it reads no clock and waits for nothing. Its input are readings of the
// node's own clocks and the clocks that other nodes announce.
//
// Guaranteed: after a jump, a clock is not trusted until it is right again. If the clocks of
// two halves of a cluster differ, the half that is ahead does
// not decide ticks. Not guaranteed: that the majority is right. If most clocks are wrong, they count as right.
package clockguard
