// Package filetrust checks who can change a file or a directory, or put another one in
// its place.
//
// A path is trusted if nobody but root and one named owner can change what it leads to:
// every directory and every symbolic link on the way belongs to root or to that owner, and
// no other user may write to it. A directory with the sticky bit, such as /tmp, may be
// writable by all: others can add names there, but cannot replace names that they do not
// own. The last element of a path is therefore checked as well.
//
// Not guaranteed: access control lists and capabilities are not checked, and root
// can always change everything. A path is trusted only until its owner
// changes a mode, so callers that delete or execute use a descriptor instead of a path.
package filetrust

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxSecret is the maximum number of bytes that ReadSecret reads.
const maxSecret = 64 << 10

// maxLinks is the number of symbolic links that the kernel follows in one path.
const maxLinks = 40

// Resolve follows an absolute path and returns the path of the same file without symbolic
// links. It fails if anyone but root and owner could lead the path elsewhere. A regular file
// at the end is not checked itself: check it with Check once it is open.
func Resolve(path string, owner uint32) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%s is not an absolute path", path)
	}

	at, links := "/", 0

	for rest := strings.Split(path, "/"); len(rest) > 0; {
		// Check one element of the path after the other. Each directory on the way must be trusted before an element in
		// it can be.
		name := rest[0]
		rest = rest[1:]
		next := filepath.Join(at, name)

		info, err := os.Lstat(next)
		if err != nil {
			return "", fmt.Errorf("%s: %w", next, withoutPath(err))
		}

		if len(rest) == 0 && info.Mode().IsRegular() {
			return next, nil
		}

		if err := Check(info, owner); err != nil {
			return "", fmt.Errorf("%s %w", next, err)
		}

		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}

		target, err := os.Readlink(next)
		if err != nil {
			return "", fmt.Errorf("%s: %w", next, withoutPath(err))
		}

		if links++; links > maxLinks {
			return "", fmt.Errorf("%s: too many symbolic links", path)
		}

		// Continue with the target of the link, relative to the directory that contains it, then with the rest.
		if filepath.IsAbs(target) {
			at = "/"
		}

		rest = append(strings.Split(target, "/"), rest...)
	}

	return at, nil
}

// OpenDir opens a directory whose path is trusted. Unlike on the way to it, the sticky bit
// does not excuse a directory that others may write to: they could take the names that the
// owner wants to use in it.
func OpenDir(path string, owner uint32) (*os.File, error) {
	resolved, err := Resolve(path, owner)
	if err != nil {
		return nil, err
	}

	dir, err := os.OpenFile(resolved, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}

	info, err := dir.Stat()
	if err == nil {
		err = CheckPrivatelyWritable(info, owner)
	}

	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("%s %w", resolved, err)
	}

	return dir, nil
}

// Check reports whether anyone but root and owner can change a file or a symbolic link, or
// replace names in a directory. The error continues a sentence that begins with the path.
func Check(info fs.FileInfo, owner uint32) error {
	isStickyDir := info.IsDir() && info.Mode()&fs.ModeSticky != 0
	isLink := info.Mode()&fs.ModeSymlink != 0 // the mode of a link means nothing

	if isStickyDir || isLink {
		return checkOwner(info, owner)
	}

	return CheckPrivatelyWritable(info, owner)
}

// CheckPrivatelyWritable reports whether anyone but root and owner can write to a file or a
// directory. The error continues a sentence that begins with the path.
func CheckPrivatelyWritable(info fs.FileInfo, owner uint32) error {
	if err := checkOwner(info, owner); err != nil {
		return err
	}

	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("can be written by users other than %s (mode %04o)", ownerName(owner), info.Mode().Perm())
	}

	return nil
}

// CheckSecret reports whether anyone but root, owner and the file's group can read a file with a secret,
// or anyone but root and owner can write it. A group may read it, since keys of certificates are commonly
// kept for a group such as ssl-cert. The error continues a sentence that begins with the path.
func CheckSecret(info fs.FileInfo, owner uint32) error {
	if !info.Mode().IsRegular() {
		return errors.New("is not a regular file")
	}

	if err := CheckPrivatelyWritable(info, owner); err != nil {
		return err
	}

	if info.Mode().Perm()&0o007 != 0 {
		return fmt.Errorf("can be read by all users (mode %04o): run chmod 600 on it", info.Mode().Perm())
	}

	return nil
}

// ReadSecret reads a file that root or owner has made for a secret of at most maxSecret bytes. It follows
// no link, and refuses a file that CheckSecret refuses. The error is an *fs.PathError if there is no file.
func ReadSecret(path string, owner uint32) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}

	defer file.Close()

	info, err := file.Stat()
	if err != nil {
		return nil, err
	}

	if err := CheckSecret(info, owner); err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}

	return io.ReadAll(io.LimitReader(file, maxSecret))
}

// MakePrivateDir creates a directory that only its owner, the caller, may use, or checks the existing one. It returns an
// error if others can write to the directory and it is not empty, because they may have created files there.
func MakePrivateDir(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}

	dir, err := os.Open(path)
	if err != nil {
		return err
	}

	defer dir.Close()

	info, err := dir.Stat()
	if err != nil {
		return err
	}

	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s does not belong to the user that uses it (%d)", path, os.Geteuid())
	}

	mode := info.Mode().Perm()
	if mode&0o077 == 0 {
		return nil
	}

	// From here on nobody else can add a file, and the listing shows files that were added before.
	if err := dir.Chmod(0o700); err != nil {
		return err
	}
	if mode&0o022 == 0 {
		return nil
	}

	names, err := dir.Readdirnames(1)
	if len(names) > 0 {
		_ = dir.Chmod(mode) // the next start has to refuse it, too

		return fmt.Errorf("%s can be written by other users (mode %04o) and is not empty: check its contents, then run chmod 700 on it", path, mode)
	}

	if !errors.Is(err, io.EOF) {
		return err
	}

	return nil
}

// checkOwner returns an error if a file belongs neither to root nor to owner.
func checkOwner(info fs.FileInfo, owner uint32) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("has no owner")
	}

	if stat.Uid != 0 && stat.Uid != owner {
		return fmt.Errorf("belongs to user %d, but must belong to %s", stat.Uid, ownerName(owner))
	}

	return nil
}

// ownerName names an owner in messages.
func ownerName(owner uint32) string {
	if owner == 0 {
		return "root"
	}

	return fmt.Sprintf("root or user %d", owner)
}

// withoutPath returns the error of a system call without the call and the path.
func withoutPath(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}

	return err
}
