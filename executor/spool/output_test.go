package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// patterns is a matcher that searches lines as the success field of a task does.
type patterns struct {
	wanted, unwanted *regexp.Regexp
	found            bool
}

func (p *patterns) MatchLine(line []byte) {
	if p.unwanted != nil && p.unwanted.Match(line) {
		return
	}

	if !p.found {
		p.found = p.wanted.Match(line)
	}
}

func (p *patterns) Settled() bool { return p.unwanted == nil && p.found }

// However the output is split into writes, a matcher receives each line as if it had come alone, and stores at
// most one.
//
// Verifies: G55
func TestLines_AreThoseOfTheStream(t *testing.T) {
	long := strings.Repeat("x", maxLineBytes)
	for name, c := range map[string]struct {
		text, pattern string
		found         bool
	}{
		"within a long line":       {long[:maxLineBytes-1] + "!" + long + "\n", "!", true},
		"behind where it is cut":   {long + "!\n", "!", false},
		"after a long line":        {long + long + "\n!\n", "^!$", true},
		"the end of a long line":   {long + "yy\n", "^x+$", true},
		"a long line without end":  {long + long, "^x+$", true},
		"several in one piece":     {"a\nb\n!\nc\n", "^!$", true},
		"nothing behind the last":  {"a\n", "^$", false},
		"an empty one in between":  {"a\n\nb", "^$", true},
		"an empty one at the head": {"\na", "^$", true},
	} {
		for _, piece := range []int{1, 3, 4096, 1 << 20} {
			if piece < 4096 && len(c.text) > 1<<10 {
				continue
			}

			r := &patterns{wanted: regexp.MustCompile(c.pattern)}
			tap := lineSplitter{matcher: r}

			for b := []byte(c.text); len(b) > 0; {
				n := min(piece, len(b))
				tap.addBytes(b[:n])
				b = b[n:]
			}

			tap.flushLine()

			if r.found != c.found {
				t.Errorf("%s, in pieces of %d: found %v, want %v", name, piece, !c.found, c.found)
			}
		}
	}

	r := &patterns{wanted: regexp.MustCompile("!"), unwanted: regexp.MustCompile("no")}
	tap, flood := lineSplitter{matcher: r}, bytes.Repeat([]byte("x"), 1<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)

	for range 200 {
		tap.addBytes(flood)
	}

	runtime.ReadMemStats(&after)

	if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 || cap(tap.part) > 2*maxLineBytes {
		t.Errorf("200 MiB without a newline took %d bytes; a line of %d is kept", grown, cap(tap.part))
	}
}

func BenchmarkLines(b *testing.B) {
	text := bytes.Repeat([]byte("2026-11-20 22:05:00 an ordinary line of some program's output\n"), 512)
	r := &patterns{wanted: regexp.MustCompile("^all done$"), unwanted: regexp.MustCompile("(?i)error")}
	tap := lineSplitter{matcher: r}
	b.SetBytes(int64(len(text)))

	for b.Loop() {
		tap.addBytes(text)
	}
}

func TestOutput_FullDisk(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	path, err := s.Path("default", "job", "r1", 1)
	must(t, err)

	o := s.NewOutput(path, task.Output{})
	o.file, err = os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	o.addOutput([]byte("one\n"), mergedStream)
	o.addOutput([]byte("two\n"), mergedStream)
	o.Close()

	sum := o.Summary()
	if sum.Bytes != 8 || !sum.Truncated || string(sum.Tail) != "one\ntwo\n" || !errors.Is(sum.Err, syscall.ENOSPC) {
		t.Errorf("got %+v", sum)
	}
}

// putResponse stores a response of a run, as an attempt does.
func putResponse(t *testing.T, s *Spool, run string, size int) Summary {
	t.Helper()

	path, err := s.Path("default", "job", run, 1)
	must(t, err)

	o := s.NewResponse(path, task.Output{})
	_, err = o.Write(bytes.Repeat([]byte("x"), size))
	must(t, err)
	sum := o.Summary()
	o.Close()

	return sum
}

func TestResponse_IsStored(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	if sum := putResponse(t, s, "r1", 10_000); sum.Bytes != 10_000 || sum.Truncated || sum.Err != nil {
		t.Errorf("%+v", sum)
	}
	if got := readOutput(t, s, "r1"); len(got) != 10_000 {
		t.Errorf("%d bytes", len(got))
	}
	if sum := putResponse(t, s, "r2", 0); sum.Bytes != 0 || sum.Err != nil {
		t.Errorf("%+v", sum)
	}
}

// Responses that no sweep has removed yet are never more than their share, however many are written.
func TestResponse_NeverMoreThanTheShare(t *testing.T) {
	const share = 10 * blockSize
	s := New(Config{Dir: t.TempDir(), Total: responseShare * share})

	stored := 0
	for i := range 30 {
		sum := putResponse(t, s, fmt.Sprintf("r%d", i), blockSize)
		if sum.Err == nil {
			stored++
		} else if !errors.Is(sum.Err, errShareUsed) || !sum.Truncated {
			t.Errorf("%+v", sum)
		}
	}
	if stored != 10 {
		t.Errorf("%d responses were stored, want 10", stored)
	}

	select {
	case <-s.sweep:
	default:
		t.Error("no sweep was requested")
	}
}

func TestSweep_RemovesResponsesBeyondTheirShare(t *testing.T) {
	const share = 10 * blockSize
	dir := t.TempDir()
	s := New(Config{Dir: dir, Total: responseShare * share})
	now := time.Now()
	setAge := func(run string, age time.Duration) {
		path, err := s.Path("default", "job", run, 1)
		must(t, err)
		must(t, os.Chtimes(path, now.Add(-age), now.Add(-age)))
	}

	// The output of a process is older than all responses, and stays.
	path, err := s.Path("default", "job", "process", 1)
	must(t, err)
	o := s.NewOutput(path, task.Output{})
	o.addOutput(bytes.Repeat([]byte("x"), 20*blockSize), mergedStream)
	o.Close()
	setAge("process", time.Hour)

	for i := range 10 {
		putResponse(t, s, fmt.Sprintf("r%d", i), blockSize)
		setAge(fmt.Sprintf("r%d", i), time.Duration(10-i)*time.Minute)
	}

	// Another process of the same node sweeps: it knows the responses by their markers.
	New(Config{Dir: dir, Total: responseShare * share}).Sweep(t.Context(), now)
	s.Sweep(t.Context(), now)

	has := func(run string) bool {
		_, err := s.Open("default", "job", run, 1)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return err == nil
	}
	if !has("process") || has("r0") || !has("r1") || !has("r9") {
		t.Errorf("process: %v, r0: %v, r1: %v, r9: %v", has("process"), has("r0"), has("r1"), has("r9"))
	}
	if got := s.responses.Load(); got != 9*blockSize {
		t.Errorf("%d bytes of responses are counted, want %d", got, 9*blockSize)
	}

	// Now there is room for one more.
	if sum := putResponse(t, s, "new", blockSize); sum.Err != nil {
		t.Errorf("%+v", sum)
	}
	if sum := putResponse(t, s, "newer", blockSize); !errors.Is(sum.Err, errShareUsed) {
		t.Errorf("%+v", sum)
	}
}
