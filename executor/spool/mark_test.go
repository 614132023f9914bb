package spool

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestSpool_MarksOnce(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	if err := s.MarkMailed("ns", "job", "r1", 1); err != nil {
		t.Fatal(err)
	}

	// Another process of the node finds the mark; another attempt has its own.
	again := New(s.cfg)
	if err := again.MarkMailed("ns", "job", "r1", 1); !errors.Is(err, ErrMailed) {
		t.Errorf("marked twice: %v", err)
	}
	if err := again.MarkMailed("ns", "job", "r1", 2); err != nil {
		t.Error(err)
	}
	if err := again.MarkMailed("ns", "job", "../r1", 1); err == nil || errors.Is(err, ErrMailed) {
		t.Errorf("marked a path beyond the spool: %v", err)
	}
}

func TestSpool_RemovesMarksWithTheirOutput(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	path, err := s.Path("ns", "job", "r1", 1)
	if err != nil {
		t.Fatal(err)
	}

	o := s.NewOutput(path, task.Output{Keep: task.Duration(time.Hour)})
	_, _ = o.Write([]byte("text"))
	o.Close()
	for _, run := range []string{"r1", "silent"} {
		if err := s.MarkMailed("ns", "job", run, 1); err != nil {
			t.Fatal(err)
		}
	}

	marks := func() int {
		list, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*"+endMail))
		return len(list)
	}

	s.Sweep(t.Context(), time.Now())
	if marks() != 2 {
		t.Error("a sweep removed a mark of output that is kept")
	}
	s.Sweep(t.Context(), time.Now().Add(2*time.Hour))
	if marks() != 1 {
		t.Errorf("%d marks are left, want that of the run without output", marks())
	}
	s.Sweep(t.Context(), time.Now().Add(s.cfg.MaxAge+time.Hour))
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}
