package batch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func manyApp() (*factory.Factory, *bytes.Buffer, *bytes.Buffer) {
	var out, errs bytes.Buffer
	a := factory.New(factory.IO{In: strings.NewReader(""), Out: &out, Err: &errs, Env: func(string) string { return "" }})
	a.Format = output.FormatTable
	return a, &out, &errs
}

func numbers(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

func TestRun_KeepsTheOrderAndGoesOnAfterFailures(t *testing.T) {
	a, out, errs := manyApp()
	got, err := Run(t.Context(), a, "pause", "paused", "task", numbers(50), func(_ context.Context, i int) (int, string, error) {
		if i == 7 {
			return 0, "", errors.New("seven")
		}
		return i, fmt.Sprintf("paused %d", i), nil
	})

	want := slices.DeleteFunc(numbers(50), func(i int) bool { return i == 7 })
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}

	var f *failure.Error
	if !errors.As(err, &f) || f.Exit != failure.ExitFailure || !f.Reported || !strings.Contains(errs.String(), "seven") {
		t.Errorf("%v, %s", err, errs)
	}

	if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); len(lines) != 49 || lines[7] != "paused 8" {
		t.Errorf("%s", out)
	}
}

func TestRun_CountsWhatWouldFillTheScreen(t *testing.T) {
	a, out, _ := manyApp()
	if _, err := Run(t.Context(), a, "pause", "paused", "task", numbers(500), func(_ context.Context, i int) (int, string, error) { return i, "paused one", nil }); err != nil {
		t.Fatal(err)
	}

	if out.String() != "paused 500 tasks\n" {
		t.Errorf("%s", out)
	}
}

func TestRun_SaysHowFarItCame(t *testing.T) {
	a, _, errs := manyApp()
	ctx, cancel := context.WithCancel(t.Context())
	var began atomic.Int32
	got, err := Run(ctx, a, "pause", "paused", "task", numbers(1000), func(ctx context.Context, i int) (int, string, error) {
		if began.Add(1) > 100 {
			cancel()
			<-ctx.Done()
			return 0, "", ctx.Err()
		}

		return i, "paused one", nil
	})

	if !errors.Is(err, context.Canceled) || len(got) != 100 || began.Load() > 100+2*maxParallel {
		t.Errorf("%d done, %d begun: %v", len(got), began.Load(), err)
	}

	if !strings.Contains(errs.String(), "interrupted: paused 100 of 1000 tasks; to pause the others, run the same command again") {
		t.Errorf("%s", errs)
	}
}

// If one call is not permitted, the others are not either. The error is reported once.
func TestRun_EndsWhereNothingIsAllowed(t *testing.T) {
	for _, code := range []string{client.CodeUnauthorized, client.CodeReadOnly} {
		a, _, errs := manyApp()
		var began atomic.Int32
		_, err := Run(t.Context(), a, "pause", "paused", "task", numbers(1000), func(context.Context, int) (int, string, error) {
			began.Add(1)
			return 0, "", &client.Error{Code: code, Status: 401}
		})

		if a.Report(err) != failure.ExitAuth || began.Load() > 3*maxParallel || strings.Count(errs.String(), "error:") != 1 {
			t.Errorf("%s: %d begun: %v: %s", code, began.Load(), err, errs)
		}
	}
}

// The server does not answer, so the others are not tried.
func TestRun_EndsWhenTheServerIsAway(t *testing.T) {
	a, _, _ := manyApp()
	var began atomic.Int32
	_, err := Run(t.Context(), a, "pause", "paused", "task", numbers(1000), func(context.Context, int) (int, string, error) {
		began.Add(1)
		return 0, "", &client.Error{Code: client.CodeUnavailable}
	})

	if !failure.IsUnreachable(err) || began.Load() > 3*maxParallel {
		t.Errorf("%d begun: %v", began.Load(), err)
	}
}

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

func TestWritten_SaysWhatItHasWritten(t *testing.T) {
	type answer struct {
		Name     string         `json:"name"`
		Revision int64          `json:"revision"`
		DryRun   *client.Change `json:"dry_run,omitempty"`
	}
	busy := &client.Error{Status: 429, Code: client.CodeRateLimited}
	roles := func(answers map[bool]answer, refused error) Written[string, answer] {
		put := func(dryRun bool) func(context.Context, *client.Client, string, client.Writing) (answer, error) {
			return func(context.Context, *client.Client, string, client.Writing) (answer, error) {
				err := refused
				if errors.Is(refused, busy) {
					refused = nil // only the first time
				}
				return answers[dryRun], err
			}
		}

		return Written[string, answer]{
			Named: Named[string]{Kind: "role", Name: func(name string) string { return name }},
			Put:   put(false), DryRun: put(true),
			Outcome: func(a answer) (int64, *client.Change) { return a.Revision, a.DryRun },
			Warn:    func(f *factory.Factory, a answer) { f.Note("note: %s", a.Name) },
			Next:    func(name string) string { return "carillon access grant " + name },
		}
	}
	written := answer{Name: "deployer", Revision: 8}
	change := &client.Change{Result: client.Configured, Fields: []client.FieldChange{{Field: "description", From: "a", To: "b"}}}

	for name, c := range map[string]struct {
		as      client.Writing
		dryRun  bool
		format  string
		refused error
		out     string
		errs    string
	}{
		"a new one":     {as: client.Writing{Create: true}, out: "created role deployer\nnext: carillon access grant deployer\n", errs: "note: deployer\n"},
		"another":       {as: client.Writing{Revision: 7}, out: "updated role deployer\n", errs: "note: deployer\n"},
		"the same":      {as: client.Writing{Revision: 8}, out: "role deployer is unchanged\n", errs: "note: deployer\n"},
		"after a pause": {as: client.Writing{Revision: 7}, refused: busy, out: "updated role deployer\n", errs: "note: deployer\n"},
		"a dry run":     {as: client.Writing{Revision: 7}, dryRun: true, out: "configured role deployer (dry run)\n  description: a → b\n", errs: "note: deployer\n"},
		"for a program": {as: client.Writing{Create: true}, format: output.FormatJSONL, out: `{"name":"deployer","revision":8}` + "\n"},
		"a name":        {as: client.Writing{Create: true}, format: output.FormatName, out: "deployer\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f, out, errs := manyApp()
			if c.format != "" {
				f.Format = c.format
			}

			w := roles(map[bool]answer{false: written, true: {Name: "deployer", DryRun: change}}, c.refused)
			if err := w.Write(t.Context(), f, nil, "deployer", c.as, c.dryRun); err != nil {
				t.Fatal(err)
			}
			if out.String() != c.out || errs.String() != c.errs {
				t.Errorf("stdout %q, stderr %q; want %q, %q", out, errs, c.out, c.errs)
			}
		})
	}

	f, _, _ := manyApp()
	err := roles(nil, task.ErrExists).Write(t.Context(), f, nil, "deployer", client.Writing{Create: true}, false)
	var fail *failure.Error
	if !errors.As(err, &fail) || fail.Hint != "change it with: carillon role update deployer" {
		t.Errorf("%+v", err)
	}
}
