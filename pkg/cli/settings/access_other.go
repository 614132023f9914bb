//go:build !unix

package settings

import "os"

// canOpenSocket always returns false, because daemons run only on Linux.
func canOpenSocket(string) bool { return false }

// isOpenToOthers always returns false: this system has access control lists instead of permissions. Files in the profile of a user are
// private, unless the user shares them.
func isOpenToOthers(os.FileMode) bool { return false }

// ownerOf returns no owner, because this system has no uids.
func ownerOf(string) (uid int, ok bool) { return 0, false }
