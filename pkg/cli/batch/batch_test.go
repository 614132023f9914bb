package batch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
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
