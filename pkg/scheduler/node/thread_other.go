//go:build !linux

package node

import "time"

var started = time.Now()

// threadTime returns the time that has passed, which is at least what the calling thread has used.
func threadTime() time.Duration { return time.Since(started) }
