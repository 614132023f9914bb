package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

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
		got := Tail([]byte(c.in), c.n)
		if got != c.want || !utf8.ValidString(got) {
			t.Errorf("tail(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}

	noise := make([]byte, 5000)
	for i := range noise {
		noise[i] = byte(i * 7)
	}

	if got := Tail(noise, 2048); len(got) > 2048 || !utf8.ValidString(got) || strings.Contains(got, "\x00") {
		t.Errorf("%d bytes of tail", len(got))
	}
}

func TestSpool_Retention(t *testing.T) {
	s := New(Config{Dir: t.TempDir(), Total: 10 * blockSize, MaxAge: time.Hour})
	now := time.Now()
	put := func(run string, age time.Duration, size int) {
		t.Helper()
		path, err := s.Path("default", "job", run, 1)
		if err != nil {
			t.Fatal(err)
		}

		o := s.NewOutput(path, task.Output{})
		o.addOutput(bytes.Repeat([]byte("x"), size), mergedStream)

		if age < 0 { // it is still running
			age = -age
			t.Cleanup(o.Close)
		} else {
			o.Close()
		}

		if err := os.Chtimes(path, now, now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}

	put("old", 2*time.Hour, 10)
	put("old-but-active", -2*time.Hour, 10)

	for i := range 12 {
		put(fmt.Sprintf("r%02d", i), time.Duration(30-i)*time.Minute, blockSize-1)
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

func TestIsRun(t *testing.T) {
	want := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$`)

	for id, is := range map[string]bool{"20261120T220500.000Z-k3f9": true, "": false, "../x": false, "a..b": false, "a.": false, "a/b": false} {
		if isRunID(id) != is {
			t.Errorf("%q is a run's id: %v", id, isRunID(id))
		}
	}

	rapid.Check(t, func(t *rapid.T) {
		id := rapid.StringOfN(rapid.RuneFrom([]rune("azAZ09_-./~\x00é")), 0, 6, -1).Draw(t, "id")
		if got := isRunID(id); got != want.MatchString(id) {
			t.Fatalf("%q is a run's id: %v", id, got)
		}
	})
}

// Attempts returns the numbers of those attempts of a run whose output is stored here, in ascending order.
func (s *Spool) Attempts(namespace, name, run string) ([]int, error) {
	path, err := s.Path(namespace, name, run, 0)
	if err != nil {
		return nil, err
	}

	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list outputs: %w", err)
	}

	attempts := []int{}
	for _, f := range files {
		rest, ok := strings.CutPrefix(f.Name(), run+".")
		rest, _ = strings.CutSuffix(strings.TrimSuffix(rest, ".zst"), endLog)
		if n, err := strconv.Atoi(rest); ok && err == nil {
			attempts = append(attempts, n)
		}
	}

	slices.Sort(attempts)

	return slices.Compact(attempts), nil
}

// After a restore, a retry may have the number of an attempt of the lost cluster, whose output is still here. It must not be taken for
// that of the retry, nor be lost before its time.
func TestSpool_KeepsTheOutputOfAFormerAttemptOfThisNumber(t *testing.T) {
	s := New(Config{Dir: t.TempDir(), MaxAge: 24 * time.Hour})
	path, err := s.Path("default", "job", "r1", 1)
	must(t, err)

	lost := bytes.Repeat([]byte("lost "), blockSize)
	write := func(text []byte) {
		t.Helper()
		o := s.NewOutput(path, task.Output{Keep: task.Duration(time.Hour)})
		if len(text) > 0 {
			o.addOutput(text, mergedStream)
		}
		o.Close()
		must(t, o.Summary().Err)
	}

	formers := func(end string) []string {
		list, err := filepath.Glob(filepath.Join(filepath.Dir(path), "r1.1"+endFormer+"*"+end))
		must(t, err)
		return list
	}

	for _, text := range []string{"", "new"} {
		write(lost)
		must(t, s.MarkMailed("default", "job", "r1", 1))
		must(t, s.packOutput(t.Context(), path))
		packed := formers(endPacked)

		write([]byte(text))
		if text != "" {
			if got := readOutput(t, s, "r1"); got != text {
				t.Errorf("the output is %q, want %q", got, text)
			}
		} else if _, err := s.Open("default", "job", "r1", 1); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("an attempt that has printed nothing has output: %v", err)
		}
		if err := s.MarkMailed("default", "job", "r1", 1); err != nil {
			t.Errorf("the attempt has the mark of the former one: %v", err)
		}

		if got := formers(endPacked); len(got) != len(packed)+1 {
			t.Fatalf("kept %q", got)
		}
		must(t, os.Remove(strings.TrimSuffix(path, endLog)+endMail))
	}

	// The former output expires as it would have.
	s.Sweep(t.Context(), time.Now())
	if got := formers(endPacked); len(got) != 2 {
		t.Errorf("%q are left before they expire", got)
	}
	s.Sweep(t.Context(), time.Now().Add(2*time.Hour))
	if got := formers(""); len(got) != 0 {
		t.Errorf("%q are left", got)
	}
}

// If the process ends while it renames the files of an earlier attempt, the next one renames the others to the same name. Nothing is
// lost, and no file stays for the attempt that begins.
func TestKeepFormer_InterruptedAtEachStepAndRepeated(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	all := slices.Clone(formerOrder)
	for i, ends := range [][]string{all, {endPacked, endTimes, endKeep, endRaw}, {endLog, endPacked}, {endLog, endResponse}, {endMail}, {endKeep, endResponse}} {
		for _, taken := range []bool{false, true} { // an attempt before has the name
			for done := 0; done <= len(ends); done++ {
				path, err := s.Path("default", "job", fmt.Sprintf("r%d-%d-%t", i, done, taken), 1)
				must(t, err)
				must(t, os.MkdirAll(filepath.Dir(path), 0o700))
				base := strings.TrimSuffix(path, endLog)

				write := func(text string) {
					for n, end := range ends {
						must(t, os.WriteFile(base+end, []byte(text+end), 0o600))
						at := time.Date(2026, 11, 28, 2, 0, n, 0, time.UTC)
						must(t, os.Chtimes(base+end, at, at))
					}
				}

				if taken {
					write("before")
					s.keepFormer(path)
				}

				write("lost")
				for _, r := range formerRenames(path)[:done] {
					must(t, os.Rename(r.from, r.to))
				}
				s.keepFormer(path)

				want := []string{"lost"}
				if taken {
					want = []string{"before", "lost"}
				}
				files, err := filepath.Glob(base + "*")
				must(t, err)
				if len(files) != len(want)*len(ends) {
					t.Errorf("%q after %d renames, taken: %t: the files are %q", ends, done, taken, files)
				}
				for _, end := range ends {
					formers, err := filepath.Glob(base + endFormer + "*Z" + end)
					must(t, err)
					for n, file := range formers {
						if text, err := os.ReadFile(file); err != nil || n >= len(want) || string(text) != want[n]+end {
							t.Errorf("%s after %d renames has %q, %v", file, done, text, err)
						}
					}
				}
			}
		}
	}
}

// A write never replaces what is there, whatever happened to the file meanwhile.
func TestSpool_NeverTruncates(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	path, err := s.Path("default", "job", "r1", 1)
	must(t, err)

	o := s.NewOutput(path, task.Output{})
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(t, os.WriteFile(path, []byte("lost"), 0o600))
	o.addOutput([]byte("new"), mergedStream)
	o.Close()

	if got := readOutput(t, s, "r1"); got != "lost" || !errors.Is(o.Summary().Err, fs.ErrExist) {
		t.Errorf("the file has %q, the error is %v", got, o.Summary().Err)
	}
}
