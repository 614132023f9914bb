package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrNoDisk means that a file system has too little free space for a backup.
var ErrNoDisk = errors.New("too little disk space")

// spareShare is the share of a file system, 1 in spareShare, that must stay free: an embedded etcd may be on the same disk, and ends its
// process when it cannot write.
const spareShare = 20

// RequireSpace returns an error that wraps ErrNoDisk unless the file system of a directory has so many bytes free, and 5 % in addition.
func RequireSpace(dir string, bytes int64) error { return requireSpace(dir, bytes, spareShare) }

// RequireFree is like RequireSpace without the 5 %, for a host whose agent is stopped. The directory may not exist yet.
func RequireFree(dir string, bytes int64) error { return requireSpace(dir, bytes, 0) }

// requireSpace requires that 1/share of the file system stays free, unless share is 0.
func requireSpace(dir string, bytes, share int64) error {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	for path := dir; errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path); {
		path = filepath.Dir(path)
		err = unix.Statfs(path, &st)
	}
	if err != nil {
		return fmt.Errorf("read the free space of %s: %w", dir, err)
	}

	free, spare, rule := int64(st.Bavail)*st.Bsize, int64(0), ""
	if share > 0 {
		spare = int64(st.Blocks) * st.Bsize / share
		rule = fmt.Sprintf(", and %d MiB (%d %%) must stay free", spare>>20, 100/share)
	}
	if free < bytes+spare {
		return fmt.Errorf("%w: %s has %d MiB free; this needs %d MiB%s", ErrNoDisk, dir, free>>20, bytes>>20+1, rule)
	}

	return nil
}
