package executor

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// A follower that comes before the attempt begins reads all that it writes, as it
// writes it, and knows when it has ended.
func TestSpool_WatchTellsOfTheBeginningOfEachWriteAndOfTheEnd(t *testing.T) {
	s := NewSpool(SpoolConfig{Dir: t.TempDir()})
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
			t.Fatalf("nobody is told of %s", what)
		}
	}
	path, _ := s.path("default", "job", "r1", 1)
	o := s.newOutput(path, task.Output{})
	await("the beginning")
	if !s.Active("default", "job", "r1", 1) {
		t.Error("it has begun, and is not active")
	}
	o.take([]byte("one\n"), merged)
	await("a write")
	if got := readOutput(t, s, "r1"); got != "one\n" {
		t.Errorf("reads %q", got)
	}
	o.take([]byte("two\n"), merged)
	o.close()
	await("the end")
	if got := readOutput(t, s, "r1"); got != "one\ntwo\n" || s.Active("default", "job", "r1", 1) {
		t.Errorf("at the end %q", got)
	}
	if _, _, err := s.Watch("default", "..", "r1", 1); !errors.Is(err, task.ErrInvalid) {
		t.Errorf("a path out of the spool: %v", err)
	}
}

// Several follow, one leaves, the others are told still; when all have left nothing
// is kept of them, and writing looks for nobody.
func TestSpool_WatchLeavesNothingBehind(t *testing.T) {
	s := NewSpool(SpoolConfig{Dir: t.TempDir()})
	path, _ := s.path("default", "job", "r1", 1)
	o := s.newOutput(path, task.Output{})
	a, stopA, _ := s.Watch("default", "job", "r1", 1)
	b, stopB, _ := s.Watch("default", "job", "r1", 1)
	stopA()
	o.take([]byte("x"), merged)
	if len(a) != 0 || len(b) != 1 {
		t.Errorf("the one that left was told %d times, the other %d", len(a), len(b))
	}
	stopB()
	if o.followed.Load() || len(s.followers) != 0 {
		t.Errorf("followed by nobody: %v, %d paths", o.followed.Load(), len(s.followers))
	}
	o.close()
}

// A run that floods its output ends, whatever its followers do: those that never read
// are told once, and cost nothing that grows.
func TestSpool_AFollowerThatDoesNotReadHoldsUpNothing(t *testing.T) {
	const size = 64 << 20
	l := newLauncher(t, SpoolConfig{Limit: 2 * size})
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
			t.Errorf("follower %d was told %d times", i, len(woken))
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

// What is removed while it is read can be read to its end; who comes later finds nothing.
func TestSpool_OutputThatIsRemovedWhileItIsRead(t *testing.T) {
	s := NewSpool(SpoolConfig{Dir: t.TempDir(), MaxAge: time.Hour})
	path, _ := s.path("default", "job", "r1", 1)
	o := s.newOutput(path, task.Output{})
	o.take([]byte("one\n"), merged)
	o.close()
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
			s := NewSpool(SpoolConfig{Dir: b.TempDir(), Limit: 1 << 40})
			path, _ := s.path("default", "job", "r1", 1)
			for range followers {
				_, stop, _ := s.Watch("default", "job", "r1", 1)
				defer stop()
			}
			o := s.newOutput(path, task.Output{})
			defer o.close()
			for b.Loop() {
				o.take(line, merged)
			}
		})
	}
}
