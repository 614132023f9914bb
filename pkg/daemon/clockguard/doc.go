// Package clockguard judges whether a node's wall clock can be trusted.
//
// It is pure: it reads no clock and waits for nothing. What it knows it is told, by
// readings of the own clocks and by the clocks that other nodes announce.
//
// It guarantees that a clock is not trusted from a jump on until it is right again,
// and that of two halves of a cluster whose clocks differ the one that is ahead does
// not decide ticks. It does not guarantee that the majority is right: a majority of
// wrong clocks counts.
package clockguard
