package process

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
)

// readAs reads a file of variables with the rights of the user that an attempt
// runs as, so that no task receives what its user could not read. It returns nil if the file does not
// exist, and a slice that is not nil if it is empty. If the daemon is root, the file must belong to that user or to
// root, and nobody else may be able to write to it, because they could set variables of the user's processes.
func readAs(path string, as account) ([]byte, error) {
	f, err := openAs(path, as.credential)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, plainError(err)
	}

	defer f.Close()

	info, err := f.Stat()
	if err != nil {
		return nil, plainError(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}

	if os.Geteuid() == 0 {
		if err := ownFile(info, as); err != nil {
			return nil, err
		}
	}

	// Read one byte more than allowed, to distinguish a file that is too large from one of the maximum size.
	b, err := io.ReadAll(io.LimitReader(f, task.MaxSecretValues+1))
	if err != nil {
		return nil, plainError(err)
	}
	if len(b) > task.MaxSecretValues {
		return nil, fmt.Errorf("is larger than %d bytes", task.MaxSecretValues)
	}

	if b == nil {
		b = []byte{}
	}

	return b, nil
}

// ownFile returns an error if the file belongs neither to the account nor to root, or if others can write to it.
func ownFile(info fs.FileInfo, as account) error {
	uid := uint32(0)
	if as.credential != nil {
		uid = as.credential.Uid
	}

	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return errors.New("has no owner")
	case st.Uid != 0 && st.Uid != uid:
		return fmt.Errorf("belongs to user %d, not to root or %s", st.Uid, as.name)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("can be written by other users (mode %04o)", info.Mode().Perm())
	}

	return nil
}

// openAs opens a file for reading with the rights of a user; nil means the daemon's own. The
// kernel checks the rights: a separate thread takes on the user's credentials, opens the file and ends.
func openAs(path string, as *syscall.Credential) (*os.File, error) {
	if as == nil {
		return openForReading(path)
	}

	var f *os.File
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		onThread(func() (clean bool) { // the thread ends, because it returns false
			if err = setFsCredentials(as); err == nil {
				f, err = openForReading(path)
			}
			return false
		})
	}()

	<-done

	return f, err
}

// openForReading opens a file for reading. It follows no link of /proc to an open file, such as /proc/self/fd/7 or
// /dev/stdin: these are the files of the daemon, in directories that the user may not be able to enter. Kernels before 5.6
// cannot exclude them.
func openForReading(path string) (*os.File, error) {
	const flags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY // opening a fifo or a terminal must not block

	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.ENOSYS):
			return os.OpenFile(path, flags, 0)
		case !errors.Is(err, unix.EINTR):
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// setFsCredentials gives the calling thread, and no other, a user's rights to files. When the file system user
// changes from root, the kernel also drops the capabilities that override permissions. The raw system calls
// are used because the syscall package would change all threads.
func setFsCredentials(as *syscall.Credential) error {
	var first unsafe.Pointer
	if len(as.Groups) > 0 {
		first = unsafe.Pointer(&as.Groups[0])
	}

	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(as.Groups)), uintptr(first), 0); errno != 0 {
		return os.NewSyscallError("setgroups", errno)
	}

	for _, set := range []struct {
		name string
		do   func(int) (int, error)
		id   int
	}{{"setfsgid", unix.SetfsgidRetGid, int(as.Gid)}, {"setfsuid", unix.SetfsuidRetUid, int(as.Uid)}} {
		_, _ = set.do(set.id) // returns the previous id and never an error, so the next line checks the effect
		if now, _ := set.do(-1); now != set.id {
			return os.NewSyscallError(set.name, unix.EPERM)
		}
	}

	return nil
}

// plainError strips the operation and the path from an error of package fs, because the caller's message names the file.
func plainError(err error) error {
	var e *fs.PathError
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
