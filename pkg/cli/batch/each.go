package batch

import (
	"context"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
)

// ForEach runs do for each thing, tells errors as they come, and goes on. The
// error it returns has the exit code that all failures share, else 1.
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

// Existing keeps those of named things that look finds; it tells of the others. So a
// dry run of a name with a slip in it fails as the change itself would.
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

// Few is how many tasks are told one by one.
const Few = 100
