package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

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
