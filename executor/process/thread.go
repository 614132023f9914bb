package process

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/workdir"
	"github.com/carillonhq/carillon/pkg/task"
)

// thread is an operating system's thread that forks. A process begins with what
// the thread that forked it had: its umask, its mount namespace, whether it can
// gain rights. The thread has that for the time of a fork; with humble for good.
type thread struct {
	noNewPrivs bool // it, and all that it forks, can gain no rights
	unshared   bool // umask, directories and mounts are its own, not the daemon's
	ns         int  // the daemon's mount namespace
	root       int  // the daemon's root directory
	inMountNS  bool // it is in another mount namespace
	masked     bool // it has a process's umask
	umask      int  // its own, then
	broken     error
}

// onThread calls f on a thread of its own, which is not the program's first:
// /proc/self shows what that one has. f returns whether the thread may be used
// for other things again.
func onThread(f func() (clean bool)) {
	runtime.LockOSThread()

	if unix.Gettid() != unix.Getpid() {
		if f() {
			runtime.UnlockOSThread() // else it ends with the goroutine
		}
		return
	}

	done := make(chan struct{})
	go func() {
		defer close(done)
		onThread(f)
	}()

	<-done
	runtime.UnlockOSThread()
}

// setNoNewPrivs makes the thread what it is to be for good.
func (t *thread) setNoNewPrivs() {
	if t.noNewPrivs {
		t.broken = os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	}
}

// applyConfinement has the thread be what the process is to begin as, until undress. An error
// is a *cannotError, or means that the thread is of no use any more.
func (t *thread) applyConfinement(c *confinement, room string) error {
	if t.broken != nil {
		return t.broken
	}
	if c == nil || c.umask < 0 && !c.private {
		return nil
	}
	if err := t.unshareFS(); err != nil { // a filter of system calls may forbid it
		return c.withoutThread(err)
	}

	if c.private {
		if err := t.enterPrivateTmp(room); err != nil {
			t.restore()
			if err := c.addUnsupported("private_tmp", "%s", err); err != nil {
				return err
			}
		}
	}

	if c.umask >= 0 {
		t.umask, t.masked = unix.Umask(c.umask), true
	}

	return nil
}

// withoutThread notes what takes a thread of its own.
func (c *confinement) withoutThread(why error) (err error) {
	if c.private {
		err = c.addUnsupported("private_tmp", "%s", why)
	}

	if c.umask >= 0 && err == nil {
		err = c.addUnsupported("umask", "%s", why)
	}

	return err
}

// restore undoes dress.
func (t *thread) restore() {
	if t.masked {
		unix.Umask(t.umask)
		t.masked = false
	}

	if !t.inMountNS {
		return
	}

	// setns goes to the root of the namespace, which is the daemon's unless it was
	// started by chroot.
	err := errors.Join(
		os.NewSyscallError("setns", unix.Setns(t.ns, unix.CLONE_NEWNS)),
		os.NewSyscallError("fchdir", unix.Fchdir(t.root)),
		os.NewSyscallError("chroot", unix.Chroot(".")),
	)
	if t.inMountNS = err != nil; t.inMountNS {
		t.broken = fmt.Errorf("the thread that starts processes is lost: %w", err)
	}
}

var unshare = unix.Unshare // a test's may refuse

// unshareFS gives the thread an umask, directories and mounts of its own.
func (t *thread) unshareFS() (err error) {
	if t.unshared {
		return nil
	}
	if t.ns, err = unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}

	if t.root, err = unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0); err == nil {
		if err = os.NewSyscallError("unshare", unshare(unix.CLONE_FS)); err != nil {
			unix.Close(t.root)
		}
	}

	if err != nil {
		unix.Close(t.ns)
		return err
	}

	t.unshared = true

	return nil
}

// enterPrivateTmp moves the thread to a mount namespace in which the directories of a working directory
// stand in for those that all share. It ends with the last process in it.
func (t *thread) enterPrivateTmp(room string) error {
	if err := unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}

	t.inMountNS = true

	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil { // the host sees none of what follows
		return &os.PathError{Op: "mount", Path: "/", Err: err}
	}

	at, err := unix.Open(room, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: room, Err: err}
	}

	defer unix.Close(at)

	for i, dir := range task.PrivateDirs {
		if err := bind(at, workdir.PrivateName(i), dir); err != nil && !(i > 0 && errors.Is(err, unix.ENOENT)) { // not every host has /var/tmp
			return &os.PathError{Op: "mount", Path: dir, Err: err}
		}
	}

	return nil
}

// bind has a directory of an open one stand in for another. It follows no link of
// whoever the working directory belongs to.
func bind(at int, name, dir string) error {
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}

	defer unix.Close(fd)

	return unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), dir, "", unix.MS_BIND, "")
}

// end lets go of what the thread holds, and reports whether it may be used for
// other things again.
func (t *thread) end() (clean bool) {
	if t.unshared {
		unix.Close(t.ns)
		unix.Close(t.root)
	}
	return !t.unshared && !t.noNewPrivs
}
