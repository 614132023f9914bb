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

// thread is an operating system thread that forks. A process inherits the umask, the mount
// namespace and no_new_privs of the thread that forked it. The thread takes on the umask and
// the mount namespace for the time of a fork. no_new_privs cannot be undone; see
// setNoNewPrivs.
type thread struct {
	noNewPrivs bool  // the thread and the processes that it forks cannot gain privileges
	unshared   bool  // its umask, root and working directory are not shared with the daemon
	ns         int   // open file of the daemon's mount namespace; valid if unshared
	root       int   // open file of the daemon's root directory; valid if unshared
	inMountNS  bool  // it is in another mount namespace
	masked     bool  // it has the umask of a process
	umask      int   // its own umask, if masked
	broken     error // why the thread cannot be used any more
}

// onThread calls f on its own thread and returns when f has returned. It never uses the
// program's first thread, because /proc/self shows that thread's state. f returns whether the
// thread is unchanged, so that the Go runtime may use it again.
func onThread(f func() (clean bool)) {
	runtime.LockOSThread()

	if unix.Gettid() != unix.Getpid() {
		if f() {
			runtime.UnlockOSThread() // otherwise the thread ends with the goroutine
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

// setNoNewPrivs sets no_new_privs on the thread if it is configured. This is permanent.
func (t *thread) setNoNewPrivs() {
	if t.noNewPrivs {
		t.broken = os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	}
}

// applyConfinement gives the thread the umask and the private directories with which the
// process has to begin, until restore undoes this. An error is an unenforceableError, or means that
// the thread cannot be used any more.
func (t *thread) applyConfinement(c *confinement, room string) error {
	if t.broken != nil {
		return t.broken
	}
	if c == nil || c.umask < 0 && !c.private {
		return nil
	}
	if err := t.unshareFS(); err != nil { // a seccomp filter may forbid it
		return c.withoutThread(err)
	}

	if c.private {
		if err := t.enterPrivateTmp(room); err != nil {
			t.restoreState()
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

// withoutThread records that the settings that need a separate thread are unsupported.
func (c *confinement) withoutThread(why error) (err error) {
	if c.private {
		err = c.addUnsupported("private_tmp", "%s", why)
	}

	if c.umask >= 0 && err == nil {
		err = c.addUnsupported("umask", "%s", why)
	}

	return err
}

// restoreState undoes applyConfinement. If it cannot leave the mount namespace, the thread is
// broken.
func (t *thread) restoreState() {
	if t.masked {
		unix.Umask(t.umask)
		t.masked = false
	}

	if !t.inMountNS {
		return
	}

	// setns changes the root directory to that of the namespace. If the daemon was started
	// in a chroot, its own root differs and has to be restored.
	err := errors.Join(
		os.NewSyscallError("setns", unix.Setns(t.ns, unix.CLONE_NEWNS)),
		os.NewSyscallError("fchdir", unix.Fchdir(t.root)),
		os.NewSyscallError("chroot", unix.Chroot(".")),
	)
	if t.inMountNS = err != nil; t.inMountNS {
		t.broken = fmt.Errorf("the thread that starts processes is lost: %w", err)
	}
}

// unshareFunc is replaced by tests that make it fail.
var unshareFunc = unix.Unshare

// unshareFS gives the thread its own umask, root and working directory, and opens what restore
// needs to return to the daemon's.
func (t *thread) unshareFS() (err error) {
	if t.unshared {
		return nil
	}
	if t.ns, err = unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}

	if t.root, err = unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0); err == nil {
		if err = os.NewSyscallError("unshare", unshareFunc(unix.CLONE_FS)); err != nil {
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

// enterPrivateTmp moves the thread to a new mount namespace, in which directories inside the
// attempt's working directory replace the shared ones (task.PrivateDirs). The kernel removes the
// namespace when the last process in it has ended.
func (t *thread) enterPrivateTmp(room string) error {
	if err := unshareFunc(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}

	// From here on, restore has to leave the namespace, also after an error.
	t.inMountNS = true

	// As slaves, the mounts still receive what the host mounts later, but the mounts that follow here do not
	// propagate to the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return &os.PathError{Op: "mount", Path: "/", Err: err}
	}

	// Open the directory before the first mount covers /tmp, because the workdir may be below it.
	at, err := unix.Open(room, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: room, Err: err}
	}

	defer unix.Close(at)

	for i, dir := range task.PrivateDirs {
		// Not every host has /var/tmp.
		if err := bindMount(at, workdir.PrivateName(i), dir); err != nil && !(i > 0 && errors.Is(err, unix.ENOENT)) {
			return &os.PathError{Op: "mount", Path: dir, Err: err}
		}
	}

	return nil
}

// bindMount mounts the directory name, in the open directory at, over dir. It does not follow
// a symbolic link at name, which the owner of the working directory could have planted.
func bindMount(at int, name, dir string) error {
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}

	defer unix.Close(fd)

	return unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), dir, "", unix.MS_BIND, "")
}

// closeThread closes what the thread holds open, and reports whether the Go runtime may use the thread
// again.
func (t *thread) closeThread() (clean bool) {
	if t.unshared {
		unix.Close(t.ns)
		unix.Close(t.root)
	}
	return !t.unshared && !t.noNewPrivs
}
