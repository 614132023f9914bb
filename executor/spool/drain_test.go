package spool

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
)

// A node may be too busy to read everything before the deadline. What was printed by then counts nevertheless, and
// a process that still holds the pipe is not waited for.
func TestOutlet_ReadsWhatIsThereAtItsDeadline(t *testing.T) {
	t.Parallel()
	s := New(Config{Dir: t.TempDir()})
	path, err := s.Path("default", "job", "r1", 1)
	must(t, err)
	pipe, w, errs, err := NewPipes(true)
	must(t, err)
	defer CloseWriters(w, errs)

	text := strings.Repeat("x", 50_000)

	for _, fd := range []int{w, errs} {
		_, err := unix.Write(fd, []byte(text))
		must(t, err)
	}

	must(t, pipe.SetReadDeadline(time.Now().Add(-time.Second)))
	o := s.NewOutput(path, task.Output{})
	pipe.CopyTo(o)
	must(t, pipe.Close())
	o.Close()

	if got := readOutput(t, s, "r1"); got != text+text {
		t.Errorf("%d bytes of %d are read", len(got), 2*len(text))
	}
}
