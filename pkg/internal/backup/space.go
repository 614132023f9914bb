package backup

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrNoDisk means that a file system has too little free space for a backup.
var ErrNoDisk = errors.New("too little disk space")

// spareShare is the share of a file system, 1 in spareShare, that must stay free: an embedded etcd may be on the same disk, and ends its
// process when it cannot write.
const spareShare = 20

// RequireSpace returns an error that wraps ErrNoDisk unless the file system of a directory has so many bytes free, and 5 % in addition.
func RequireSpace(dir string, bytes int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("read the free space of %s: %w", dir, err)
	}

	return requireSpace(dir, bytes, int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize)
}

// requireSpace is RequireSpace for a file system with so many bytes.
func requireSpace(dir string, bytes, free, total int64) error {
	if spare := total / spareShare; free < bytes+spare {
		return fmt.Errorf("%w: %s has %d MiB free; this needs %d MiB, and %d MiB (5 %%) must stay free", ErrNoDisk, dir, free>>20, bytes>>20+1, spare>>20)
	}

	return nil
}
