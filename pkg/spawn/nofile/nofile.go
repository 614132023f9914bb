//go:build linux && (amd64 || arm64)

// Package nofile provides the limit of open files (RLIMIT_NOFILE) with which this program was
// started.
//
// The syscall package raises the soft limit to the hard one when the program starts.
// syscall.ForkExec restores the original limit in children, but no function returns it. A program that
// forks in another way has to read the limit before the syscall package is initialized.
//
// The language specification says in which order packages are initialized: of those whose
// imports are initialized, the first by import path. This package imports nothing, and its
// path sorts before "syscall". A test of package spawn makes sure that it works.
package nofile

// Soft and Hard are the limits that the program was started with.
var Soft, Hard = readLimit()

func readLimit() (soft, hard uint64) {
	var l [2]uint64
	getrlimit(&l)
	return l[0], l[1]
}

// getrlimit reads RLIMIT_NOFILE. It cannot fail; if it did, l would be unchanged.
//
//go:noescape
func getrlimit(l *[2]uint64)
