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

	"github.com/carillonhq/carillon/executor/mask"
	"github.com/carillonhq/carillon/pkg/task"
)

// The standard input of a process is a descriptor whose content is complete before the process starts: the file that the
// task names, or a sealed memory file with a text or the value of a secret. So no goroutine copies data while the process
// runs, and a process that does not read its input is not disturbed. Without stdin in the task, it is /dev/null.

// openStdin opens the standard input of an attempt. It returns nil if the task has none. The caller closes the file when
// the process has its copy. The value of a secret is added to hidden; one that cannot be read is a refusal with the reason
// secret.
func (ru *Runner) openStdin(a task.Assigned, hidden *mask.Masker, may func() error, o *Orders) (*os.File, error) {
	in := a.Action.Process.Stdin
	if in == nil {
		return nil, nil
	}

	as, err := ru.account(a.Action.Process)
	if err != nil {
		return nil, err
	}

	if in.File != "" {
		// The file may be on a file system that does not answer.
		f, err := runWithTimeout(ru.stuck, o.given, a.Timeout.Std(), "to open "+in.Source(), func() (*os.File, error) { return openInputAs(in.File, as) })
		if err != nil {
			return nil, fmt.Errorf("stdin: %s: %w", in.Source(), err)
		}
		return f, nil
	}

	text := in.Text
	if in.Secret != "" {
		if text, err = ru.secretText(a, in.Secret, may, o); err != nil {
			if hasReason(err) {
				return nil, err
			}
			return nil, asRefusal(task.ReasonSecret, fmt.Errorf("stdin: %w", err))
		}
		hidden.HideText(text)
	}

	f, err := newSealedFile(text, as)
	if err != nil {
		return nil, fmt.Errorf("stdin: %w", err)
	}

	return f, nil
}

// secretText returns the value of a secret that ref, NAME/KEY, names.
func (ru *Runner) secretText(a task.Assigned, ref string, may func() error, o *Orders) (string, error) {
	name, key, err := task.ParseSecretRef(ref)
	if err != nil {
		return "", err
	}

	from := task.EnvFrom{Secret: name}
	values, err := ru.secretValues(a.Namespace, from, may, o)
	if err != nil {
		return "", err
	}

	value, ok := values[key]
	if !ok {
		return "", fmt.Errorf("%s does not contain %s", from.Source(), task.Quote(key))
	}

	return value, nil
}

// openInputAs opens a file as the standard input of a process, with the rights of the user that the process runs as. Only
// regular files are allowed: others may block, or change while the process reads. Files of /proc show the daemon that
// opens them, and not the process.
func openInputAs(path string, as account) (*os.File, error) {
	f, err := openAs(path, as.credential)
	if err != nil {
		return nil, plainError(err)
	}

	if err = checkInput(f); err != nil {
		f.Close()
		return nil, err
	}

	return f, nil
}

// checkInput returns an error if the open file must not be the standard input of a process.
func checkInput(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return plainError(err)
	}
	if !info.Mode().IsRegular() {
		return errors.New("is not a regular file")
	}

	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if fs.Type == unix.PROC_SUPER_MAGIC {
		return errors.New("is a file of /proc, which cannot be an input")
	}

	return nil
}

// newSealedFile returns a memory file with this content, at its beginning. Nobody can change it, and only the user of the
// attempt can open it again, as programs do that are given /dev/stdin.
func newSealedFile(text string, as account) (_ *os.File, err error) {
	fd, err := createMemoryFile()
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}

	f := os.NewFile(uintptr(fd), "stdin")
	defer func() {
		if err != nil {
			f.Close()
		}
	}()

	if _, err := f.WriteString(text); err != nil {
		return nil, plainError(err)
	}
	if _, err := f.Seek(0, 0); err != nil {
		return nil, plainError(err)
	}

	if as.credential != nil {
		if err := f.Chown(int(as.credential.Uid), int(as.credential.Gid)); err != nil {
			return nil, plainError(err)
		}
	}
	if err := f.Chmod(0o400); err != nil {
		return nil, plainError(err)
	}

	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}

	return f, nil
}

// createMemoryFile creates a memory file that can be sealed. Hosts may forbid those that could be executed
// (vm.memfd_noexec); kernels before 6.3 do not know the difference.
func createMemoryFile() (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("stdin", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		return unix.MemfdCreate("stdin", flags)
	}

	return fd, err
}

// closeStdin closes the runner's copy of the standard input. It may be called more than once.
func (p *preparedAttempt) closeStdin() {
	if p.stdin != nil {
		p.stdin.Close()
	}
}

// withArguments returns the attempt with the arguments of its run appended to its command. A shell line gets them in
// lookUp.
func withArguments(a task.Assigned) task.Assigned {
	given := a.Action.Process
	if len(a.Args) == 0 || given == nil || len(given.Command) == 0 {
		return a
	}

	p := *given
	p.Command = append(p.Command[:len(p.Command):len(p.Command)], a.Args...)
	a.Action.Process = &p

	return a
}

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
