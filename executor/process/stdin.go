package process

import (
	"errors"
	"fmt"
	"os"

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
func (l *Runner) openStdin(a task.Assigned, hidden *mask.Masker, may func() error, o *Orders) (*os.File, error) {
	in := a.Action.Process.Stdin
	if in == nil {
		return nil, nil
	}

	as, err := l.account(a.Action.Process)
	if err != nil {
		return nil, err
	}

	if in.File != "" {
		// The file may be on a file system that does not answer.
		f, err := runWithTimeout(l.stuck, o.given, a.Timeout.Std(), "to open "+in.Source(), func() (*os.File, error) { return openInputAs(in.File, as) })
		if err != nil {
			return nil, fmt.Errorf("stdin: %s: %w", in.Source(), err)
		}
		return f, nil
	}

	text := in.Text
	if in.Secret != "" {
		if text, err = l.secretText(a, in.Secret, may, o); err != nil {
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
func (l *Runner) secretText(a task.Assigned, ref string, may func() error, o *Orders) (string, error) {
	name, key, err := task.ParseSecretRef(ref)
	if err != nil {
		return "", err
	}

	from := task.EnvFrom{Secret: name}
	values, err := l.secretValues(a.Namespace, from, may, o)
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
func (w *preparedAttempt) closeStdin() {
	if w.stdin != nil {
		w.stdin.Close()
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
