package batch

import (
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
)

// telling is a progress display whose clock a test sets.
func telling(tty bool) (*factorytest.TestFactory, func(time.Duration)) {
	d := factorytest.New("")
	d.Terminal = func(any) (int, bool) { return 80, tty }
	now := time.Date(2026, 11, 20, 22, 12, 0, 0, time.UTC)
	d.Now = func() time.Time { return now }

	return d, func(by time.Duration) { now = now.Add(by) }
}

// shared is a buffer that a test reads while a progress bar writes to it.
type shared struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *shared) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestProgress_IsABarOnATerminal(t *testing.T) {
	d, pass := telling(true)
	d.Vars["NO_COLOR"] = "1"
	errs := &shared{}
	d.Err = errs
	w := NewApplyProgress(d.Factory, 1000)
	w.Step(1, 0)

	if w.bar != nil || errs.String() != "" {
		t.Fatal("progress is shown too early")
	}

	w.track.SetValue(500)

	if w.track.ETA() == 0 {
		t.Error("its time does not count from the start of the work")
	}

	pass(time.Second)
	w.Step(300, 0)
	w.Step(400, 1)

	for end := time.Now().Add(time.Minute); !strings.Contains(errs.String(), "401") && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}

	if code := w.Report(d.Factory, errors.New("above the bar")); code != failure.ExitFailure {
		t.Errorf("exit code %d", code)
	}

	w.Close()
	w.Close()
	got := errs.String()

	for _, want := range []string{`40\.10%`, `401`, `/s`, ` in [0-9.]+m?s`, `error: above the bar`} {
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("no %s in %q", want, got)
		}
	}

	if colours := regexp.MustCompile("\x1b\\[[0-9;]*m").FindString(got); strings.Trim(colours, "\x1b[0m") != "" {
		t.Errorf("colour %q", colours)
	}

	if d.Out.Len() > 0 {
		t.Errorf("%q on the standard output", d.Out.String())
	}
}

func TestProgress_IsALineNowAndThenElsewhere(t *testing.T) {
	d, pass := telling(false)
	w := NewApplyProgress(d.Factory, 1000)

	for i := range 25 {
		pass(time.Second)
		w.Step(10*(i+1), 0)
	}

	w.Close()

	if want := "100 of 1000 applied, 0 failed, 10/s\n200 of 1000 applied, 0 failed, 10/s\n"; d.Errs.String() != want {
		t.Errorf("got %q, want %q", d.Errs.String(), want)
	}
}

func TestProgress_IsNotForPrograms(t *testing.T) {
	for what, set := range map[string]func(*factorytest.TestFactory){
		"-o json": func(d *factorytest.TestFactory) { d.Format = output.FormatJSON }, "-q": func(d *factorytest.TestFactory) { d.Quiet = true }, "TERM=dumb": func(d *factorytest.TestFactory) { d.Vars["TERM"] = "dumb" },
	} {
		d, pass := telling(true)
		set(d)
		w := NewApplyProgress(d.Factory, 1000)
		pass(5 * time.Second)
		w.Step(500, 0)
		w.Close()

		if d.Errs.Len() > 0 {
			t.Errorf("%s: %q", what, d.Errs.String())
		}
	}
}
