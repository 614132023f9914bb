package spool

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// A follower that begins to watch before the attempt reads all output while it is written, and detects the end.
func TestSpool_WatchTellsOfTheBeginningOfEachWriteAndOfTheEnd(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	woken, stop, err := s.Watch("default", "job", "r1", 1)
	if err != nil {
		t.Fatal(err)
	}

	defer stop()

	await := func(what string) {
		t.Helper()

		select {
		case <-woken:
		case <-time.After(patient):
			t.Fatalf("no notification of %s", what)
		}
	}

	path, _ := s.Path("default", "job", "r1", 1)
	o := s.NewOutput(path, task.Output{})
	await("the beginning")

	if !s.Active("default", "job", "r1", 1) {
		t.Error("it has begun, and is not active")
	}

	o.addOutput([]byte("one\n"), mergedStream)
	await("a write")

	if got := readOutput(t, s, "r1"); got != "one\n" {
		t.Errorf("reads %q", got)
	}

	o.addOutput([]byte("two\n"), mergedStream)
	o.Close()
	await("the end")

	if got := readOutput(t, s, "r1"); got != "one\ntwo\n" || s.Active("default", "job", "r1", 1) {
		t.Errorf("at the end %q", got)
	}

	if _, _, err := s.Watch("default", "..", "r1", 1); !errors.Is(err, task.ErrInvalid) {
		t.Errorf("a path out of the spool: %v", err)
	}
}

// If one of several followers leaves, the others are still notified. When all have left, nothing of them is kept,
// and writes look for no followers.
func TestSpool_WatchLeavesNothingBehind(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	path, _ := s.Path("default", "job", "r1", 1)
	o := s.NewOutput(path, task.Output{})
	a, stopA, _ := s.Watch("default", "job", "r1", 1)
	b, stopB, _ := s.Watch("default", "job", "r1", 1)
	stopA()
	o.addOutput([]byte("x"), mergedStream)

	if len(a) != 0 || len(b) != 1 {
		t.Errorf("the follower that left was notified %d times, the other %d", len(a), len(b))
	}

	stopB()

	if o.followed.Load() || len(s.followers) != 0 {
		t.Errorf("without followers: %v, %d paths", o.followed.Load(), len(s.followers))
	}

	o.Close()
}

// An output that is removed while it is read can be read to its end. Readers that come later do not find it.
func TestSpool_OutputThatIsRemovedWhileItIsRead(t *testing.T) {
	s := New(Config{Dir: t.TempDir(), MaxAge: time.Hour})
	path, _ := s.Path("default", "job", "r1", 1)
	o := s.NewOutput(path, task.Output{})
	o.addOutput([]byte("one\n"), mergedStream)
	o.Close()

	f, err := s.Open("default", "job", "r1", 1)
	if err != nil {
		t.Fatal(err)
	}

	defer f.Close()

	s.Sweep(t.Context(), time.Now().Add(2*time.Hour))

	if b, err := io.ReadAll(f); !bytes.Equal(b, []byte("one\n")) || err != nil {
		t.Errorf("%q, %v", b, err)
	}

	if _, err := s.Open("default", "job", "r1", 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after its removal: %v", err)
	}
}

// BenchmarkOutput writes lines as a process does, with and without followers.
func BenchmarkOutput(b *testing.B) {
	line := bytes.Repeat([]byte("x"), 100)

	for name, followers := range map[string]int{"alone": 0, "followed": 1, "by 100": 100} {
		b.Run(name, func(b *testing.B) {
			s := New(Config{Dir: b.TempDir(), Limit: 1 << 40})
			path, _ := s.Path("default", "job", "r1", 1)

			for range followers {
				_, stop, _ := s.Watch("default", "job", "r1", 1)
				defer stop()
			}

			o := s.NewOutput(path, task.Output{})
			defer o.Close()

			for b.Loop() {
				o.addOutput(line, mergedStream)
			}
		})
	}
}
