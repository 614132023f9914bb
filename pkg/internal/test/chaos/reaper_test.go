package chaos_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// asReaper is an environment variable that makes the test binary a reaper of a run's processes. Its value is the
// mark of the run.
const asReaper = "CHAOS_REAPER"

// startReaper starts a process that ends all others of the run when the test has ended, however it ended. Guardians
// outlive their daemons on purpose.
func (w *world) startReaper() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}

	r := exec.Command(exe)
	r.Env = append(w.environ(), asReaper+"="+w.mark, asReaper+"_MOUNT="+w.mountPoint(), markName+"=")
	r.SysProcAttr = &syscall.SysProcAttr{Setsid: true}

	hold, err := r.StdinPipe()
	if err == nil {
		err = r.Start()
	}

	if err != nil {
		return fmt.Errorf("start the reaper: %w", err)
	}

	w.closers = append(w.closers, func() { hold.Close(); _ = r.Wait() })

	return nil
}

// reap waits for the end of the test, which holds the other end of standard input, and then removes everything of
// its run.
func reap(mark, mount string) {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	_, _ = io.Copy(io.Discard, os.Stdin)
	sweep(mark)
	_ = unix.Unmount(mount, unix.MNT_DETACH) // it may not exist
}
