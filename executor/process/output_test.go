package process

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestProcess_OutputLimit(t *testing.T) {
	l := newLauncher(t, spool.Config{Limit: 100_000})
	r := l.shell(t, "head -c 5000000 /dev/zero | tr '\\0' x; echo end")
	if r.State != task.Succeeded || r.OutputBytes != 5_000_004 || !r.Truncated || !strings.HasSuffix(string(r.Tail), "xend\n") {
		t.Errorf("got %s, %d bytes, truncated %v, tail %.20q", r.State, r.OutputBytes, r.Truncated, r.Tail)
	}

	got := executortest.ReadOutput(t, l.spool, "r1")
	if want := strings.Repeat("x", 100_000) + "\n[carillon: output beyond 100000 bytes is not kept]\n"; got != want {
		t.Errorf("got %d bytes that end in %q", len(got), got[max(0, len(got)-60):])
	}

	r = l.shell(t, "head -c 100000 /dev/zero")
	if r.Truncated || len(executortest.ReadOutput(t, l.spool, "r1")) != 100_000 {
		t.Error("output of exactly the limit counts as too much")
	}
}

func TestProcess_OutputThatCannotBeKept(t *testing.T) {
	dir := t.TempDir()
	l := newLauncher(t, spool.Config{Dir: dir})

	// A file in place of the spool's directory has the same effect as a full disk.
	if err := os.WriteFile(filepath.Join(dir, "spool"), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	r := l.shell(t, "echo hello")
	if r.State != task.Succeeded || string(r.Tail) != "hello\n" || !r.Truncated || !strings.Contains(r.Message, "not kept") {
		t.Errorf("got %+v", r)
	}
}

func TestSpool_ActiveWithoutOutputIsEmpty(t *testing.T) {
	l := newLauncher(t, spool.Config{})
	looked := make(chan error, 1)
	a := executortest.Assigned("r1", &task.Process{Shell: "sleep 0.1"})

	prep, err := l.prepareAttempt(a, executortest.NewToken())
	if err != nil {
		t.Fatal(err)
	}

	prep.onStarted = func(time.Time) {
		f, err := l.spool.Open("default", "job", "r1", 1)
		if err == nil {
			_, err = f.Seek(0, io.SeekEnd)
			f.Close()
		}

		looked <- err
	}

	l.runPrepared(prep, NewOrders())

	if err := <-looked; err != nil {
		t.Error(err)
	}

	if _, err := l.spool.Open("default", "job", "r1", 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}
}

// A run that floods its output ends, whatever its followers do. Followers that never read are notified once, and
// use no growing memory.
func TestSpool_AFollowerThatDoesNotReadHoldsUpNothing(t *testing.T) {
	const size = 64 << 20
	l := newLauncher(t, spool.Config{Limit: 2 * size})

	var asleep []<-chan struct{}
	for range 100 {
		woken, stop, err := l.spool.Watch("default", "job", "r1", 1)
		if err != nil {
			t.Fatal(err)
		}

		defer stop()

		asleep = append(asleep, woken)
	}

	r := l.shell(t, "head -c 67108864 /dev/zero")
	if r.State != task.Succeeded || r.OutputBytes != size || r.Truncated {
		t.Errorf("%s, %d bytes, truncated %v", r.State, r.OutputBytes, r.Truncated)
	}

	for i, woken := range asleep {
		if len(woken) != 1 {
			t.Errorf("follower %d was notified %d times", i, len(woken))
		}
	}

	f, err := l.spool.Open("default", "job", "r1", 1)
	if err != nil {
		t.Fatal(err)
	}

	defer f.Close()

	if n, err := f.Seek(0, io.SeekEnd); n != size || err != nil {
		t.Errorf("%d bytes are there, %v", n, err)
	}
}
