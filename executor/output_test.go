package executor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestProcess_OutputLimit(t *testing.T) {
	l := newLauncher(t, SpoolConfig{Limit: 100_000})
	r := l.shell(t, "head -c 5000000 /dev/zero | tr '\\0' x; echo end")
	if r.State != task.Succeeded || r.OutputBytes != 5_000_004 || !r.Truncated || !strings.HasSuffix(string(r.Tail), "xend\n") {
		t.Errorf("got %s, %d bytes, truncated %v, tail %.20q", r.State, r.OutputBytes, r.Truncated, r.Tail)
	}
	got := readOutput(t, l.spool, "r1")
	if want := strings.Repeat("x", 100_000) + "\n[carillon: output beyond 100000 bytes is not kept]\n"; got != want {
		t.Errorf("got %d bytes that end in %q", len(got), got[max(0, len(got)-60):])
	}
	r = l.shell(t, "head -c 100000 /dev/zero")
	if r.Truncated || len(readOutput(t, l.spool, "r1")) != 100_000 {
		t.Error("output of exactly the limit counts as too much")
	}
}

func readOutput(t *testing.T, s *Spool, run string) string {
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

func TestProcess_OutputThatCannotBeKept(t *testing.T) {
	l := newLauncher(t, SpoolConfig{})
	// A file where the spool's directory should be: as good as a full disk.
	if err := os.WriteFile(l.spool.root, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := l.shell(t, "echo hello")
	if r.State != task.Succeeded || string(r.Tail) != "hello\n" || !r.Truncated || !strings.Contains(r.Message, "not kept") {
		t.Errorf("got %+v", r)
	}
}

func TestProcess_FullDisk(t *testing.T) {
	l := newLauncher(t, SpoolConfig{})
	path, err := l.spool.path("default", "job", "r1", 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", path); err != nil {
		t.Fatal(err)
	}
	r := l.shell(t, "echo one; echo two; exit 0")
	if r.State != task.Succeeded || string(r.Tail) != "one\ntwo\n" || !strings.Contains(r.Message, "no space left") {
		t.Errorf("got %+v %q", r, r.Tail)
	}
}

func TestTail(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"hello", 10, "hello"},
		{"hello", 3, "llo"},
		{"aé", 1, ""},
		{"a\x00b", 10, "a\uFFFDb"},
		{"\xff\xfe\xfdab", 10, "\uFFFDab"},
		{"x\xff", 3, "\uFFFD"},
		{"日本語", 7, "本語"},
		{"", 5, ""},
	} {
		got := tail([]byte(c.in), c.n)
		if got != c.want || !utf8.ValidString(got) {
			t.Errorf("tail(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
	noise := make([]byte, 5000)
	for i := range noise {
		noise[i] = byte(i * 7)
	}
	if got := tail(noise, 2048); len(got) > 2048 || !utf8.ValidString(got) || strings.Contains(got, "\x00") {
		t.Errorf("%d bytes of tail", len(got))
	}
}

func TestSpool_Retention(t *testing.T) {
	s := NewSpool(SpoolConfig{Dir: t.TempDir(), Total: 10 * block, MaxAge: time.Hour})
	now := time.Now()
	put := func(run string, age time.Duration, size int) {
		t.Helper()
		path, err := s.path("default", "job", run, 1)
		if err != nil {
			t.Fatal(err)
		}
		o := s.newOutput(path, task.Output{})
		o.take(bytes.Repeat([]byte("x"), size), merged)
		if age < 0 { // still runs
			age = -age
			t.Cleanup(o.close)
		} else {
			o.close()
		}
		if err := os.Chtimes(path, now, now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	put("old", 2*time.Hour, 10)
	put("old-but-active", -2*time.Hour, 10)
	for i := range 12 {
		put(fmt.Sprintf("r%02d", i), time.Duration(30-i)*time.Minute, block-1)
	}
	s.Sweep(t.Context(), now)
	for run, want := range map[string]bool{"old": false, "old-but-active": true, "r00": false, "r01": false, "r02": false, "r03": true, "r11": true} {
		f, err := s.Open("default", "job", run, 1)
		if err == nil {
			f.Close()
		}
		if got := err == nil; got != want || (err != nil && !errors.Is(err, fs.ErrNotExist)) {
			t.Errorf("%s: there: %v, want %v (%v)", run, got, want, err)
		}
	}
	if got, err := s.Attempts("default", "job", "r11"); err != nil || !slices.Equal(got, []int{1}) {
		t.Errorf("attempts %v, %v", got, err)
	}
	if got, err := s.Attempts("default", "job", "r1"); err != nil || len(got) != 0 {
		t.Errorf("attempts of a run that is not there: %v, %v", got, err)
	}
	if _, err := s.Open("default", "..", "r", 1); !errors.Is(err, task.ErrInvalid) {
		t.Errorf("a path out of the spool: %v", err)
	}
	if _, err := s.Open("default", "job", "../../x", 1); !errors.Is(err, task.ErrInvalid) {
		t.Errorf("a path out of the spool: %v", err)
	}
}

func TestSpool_ActiveWithoutOutputIsEmpty(t *testing.T) {
	l := newLauncher(t, SpoolConfig{})
	looked := make(chan error, 1)
	a := assigned("r1", &task.Process{Shell: "sleep 0.1"})
	what, err := l.prepare(a, newToken())
	if err != nil {
		t.Fatal(err)
	}
	what.onStarted = func(time.Time) {
		f, err := l.spool.Open("default", "job", "r1", 1)
		if err == nil {
			_, err = f.Seek(0, io.SeekEnd)
			f.Close()
		}
		looked <- err
	}
	l.run(what, newOrders())
	if err := <-looked; err != nil {
		t.Error(err)
	}
	if _, err := l.spool.Open("default", "job", "r1", 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}
}

func TestIsRun(t *testing.T) {
	want := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$`)
	for id, is := range map[string]bool{"20261120T220500.000Z-k3f9": true, "": false, "../x": false, "a..b": false, "a.": false, "a/b": false} {
		if isRun(id) != is {
			t.Errorf("%q is a run's id: %v", id, isRun(id))
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.StringOfN(rapid.RuneFrom([]rune("azAZ09_-./~\x00é")), 0, 6, -1).Draw(t, "id")
		if got := isRun(id); got != want.MatchString(id) {
			t.Fatalf("%q is a run's id: %v", id, got)
		}
	})
}
