//go:build unix

package settings

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// canOpenSocket reports whether path is a socket to which this user may connect.
func canOpenSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Type() == os.ModeSocket && unix.Access(path, unix.W_OK) == nil
}

// isOpenToOthers reports whether a file with these permissions can be opened by other users.
func isOpenToOthers(mode os.FileMode) bool { return mode.Perm()&0o077 != 0 }

// ownerOf returns the uid of a file's owner.
func ownerOf(path string) (uid int, ok bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, false
	}

	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}

	return int(st.Uid), true
}
