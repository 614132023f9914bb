package executor

import (
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
)

// writeFile writes a file with a mode, whatever the umask.
func writeFile(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// cpu is the processor time that this process, or its children that have ended,
// took so far: a machine that others use as well says more by it than by its clock.
func cpu(b *testing.B, who int) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// writeProgram writes one that can be executed at once, whatever other tests fork meanwhile.
func writeProgram(t testing.TB, path, text string) {
	t.Helper()
	writeFile(t, path+".text", text, 0o600)
	executortest.Must(t, copyFile(path, path+".text"))
	executortest.Must(t, os.Chmod(path, 0o755))
}

// outputs is what readOutput needs of a spool.
type outputs interface {
	Open(namespace, name, run string, attempt int) (io.ReadSeekCloser, error)
}

// readOutput reads all output of a first attempt of the job that assigned makes.
func readOutput(t testing.TB, s outputs, run string) string {
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
