package executortest

import (
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// WriteFile writes a file with a mode, whatever the umask.
func WriteFile(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()

	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// CPU is the processor time that this process, or its children that have ended,
// took so far: a machine that others use as well says more by it than by its clock.
func CPU(b *testing.B, who int) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		b.Fatal(err)
	}

	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// WriteProgram writes one that can be executed at once, whatever other tests fork meanwhile.
func WriteProgram(t testing.TB, path, text string) {
	t.Helper()
	WriteFile(t, path+".text", text, 0o600)
	Must(t, copyFile(path, path+".text"))
	Must(t, os.Chmod(path, 0o755))
}

// Outputs is what readOutput needs of a spool.
type Outputs interface {
	Open(namespace, name, run string, attempt int) (io.ReadSeekCloser, error)
}

// ReadOutput reads all output of a first attempt of the job that assigned makes.
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

// copyFile has another process write the file: a descriptor of this one that a fork inherits would keep it from being executed.
func copyFile(to, from string) error { return exec.Command("cp", from, to).Run() }
