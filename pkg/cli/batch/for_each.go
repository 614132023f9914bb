package batch

import (
	"context"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
)

// ForEach calls do for each thing, prints errors as they occur, and continues. The error that it returns has
// the exit code that all failures share, or 1 if they differ.
func ForEach[T any](ctx context.Context, f *factory.Factory, things []T, do func(T) error) error {
	var codes []int
	for _, thing := range things {
		err := do(thing)
		if err == nil {
			continue
		}
		if ctx.Err() != nil || len(things) == 1 || f.IsHopeless(err) {
			return err
		}

		codes = append(codes, f.Report(err))
	}

	return failure.AlreadyReported(codes)
}

// Existing returns those of the named things that exist, and reports the others. With it, a dry run fails for a
// misspelled name as the change itself would.
func Existing[T any](ctx context.Context, f *factory.Factory, things []T, look func(T) error) ([]T, error) {
	found := make([]T, 0, len(things))
	failed := ForEach(ctx, f, things, func(t T) error {
		err := look(t)
		if err == nil {
			found = append(found, t)
		}
		return err
	})

	return found, failed
}

// Few is the maximum number of objects whose results are printed individually.
const Few = 100
