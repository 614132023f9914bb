//go:build !unix

package settings

// canOpenSocket always returns false, because daemons run only on Linux.
func canOpenSocket(string) bool { return false }

// ownerOf returns no owner, because this system has no uids.
func ownerOf(string) (uid int, ok bool) { return 0, false }
