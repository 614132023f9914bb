// Package hostfacts measures the facts that a node announces about its host: processors, load, memory
// and disk space. It also determines which of the node's own limits are exceeded.
//
// If a control group around the daemon allows less than the machine has, that counts. A value that cannot be
// measured is unknown, which is not an error; the state of its limit does not change. A file
// system that hangs blocks one goroutine, and each measurement waits at most two seconds for it.
package hostfacts
