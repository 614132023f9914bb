//go:build !unix

package settings

// canOpenSocket never finds one: daemons run on Linux.
func canOpenSocket(string) bool { return false }

// ownerOf knows no users.
func ownerOf(string) (uid int, ok bool) { return 0, false }
