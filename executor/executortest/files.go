package executortest

import (
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// WriteFile writes a file with a mode, whatever the umask is.
func WriteFile(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()

	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// CPU returns the processor time that this process, or its children that have ended, have used. On a busy machine,
// it is a better measure than the wall clock.
func CPU(b *testing.B, who int) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		b.Fatal(err)
	}

	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// WriteProgram writes a program that can be executed at once, even if other tests fork at the same time.
func WriteProgram(t testing.TB, path, text string) {
	t.Helper()
	WriteFile(t, path+".text", text, 0o600)
	Must(t, copyFile(path, path+".text"))
	Must(t, os.Chmod(path, 0o755))
}

// Outputs is the part of a spool that ReadOutput needs.
type Outputs interface {
	Open(namespace, name, run string, attempt int) (io.ReadSeekCloser, error)
}

// ReadOutput returns the whole output of the first attempt of a run of the task in Assigned.
func ReadOutput(t testing.TB, s Outputs, run string) string {
	t.Helper()
	f, err := s.Open("default", "job", run, 1)
	if err != nil {
		t.Fatal(err)
	}

	defer f.Close()

	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}

	return string(b)
}

// copyFile copies a file with another process. A descriptor of this process could be inherited by a concurrent
// fork, and a file that is open for writing cannot be executed.
func copyFile(to, from string) error { return exec.Command("cp", from, to).Run() }
