package batch

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
)

// maxParallel is the maximum number of calls in flight.
const maxParallel = 16

// Parallel calls do for 0 to n-1, several at a time, until a call fails or ctx ends.
func Parallel(ctx context.Context, n int, do func(i int) error) error {
	g, going := errgroup.WithContext(ctx)
	g.SetLimit(maxParallel)

	for i := range n {
		if going.Err() != nil {
			break
		}
		g.Go(func() error { return do(i) })
	}

	if err := g.Wait(); err != nil {
		return err
	}

	return ctx.Err()
}

// outcome is the result for one object.
type outcome[R any] struct {
	result   R
	message  string // for people
	err      error
	finished bool
}

// Run applies do to all things, several at a time, and returns the results of those that succeeded, in order.
// The second result of do is a sentence for people; it is printed unless there are many things. Errors are
// printed as they occur, and do not stop the others. verb and past name the operation in messages, such as
// "pause" and "paused".
func Run[T, R any](ctx context.Context, f *factory.Factory, verb, past, kind string, things []T, do func(context.Context, T) (R, string, error)) ([]R, error) {
	b := &runner[R]{Factory: f, past: past, kind: kind, all: make([]outcome[R], len(things))}
	b.progress = NewProgress(f, past, len(things))
	err := b.runOnEach(ctx, func(ctx context.Context, i int) (R, string, error) { return do(ctx, things[i]) })
	b.progress.Close()
	b.reportRest()

	if f.ForPeople() && len(things) > Few && b.printed {
		f.Say("%s %d %ss%s", past, b.ok, kind, failedSuffix(len(b.codes)))
	}

	if ctx.Err() != nil && len(things) > 1 && b.printed {
		f.Note("interrupted: %s %d of %d %ss%s; to %s the others, run the same command again", past, b.ok, len(things), kind, failedSuffix(len(b.codes)), verb)
	}

	list := make([]R, 0, b.ok)
	for _, d := range b.all {
		if d.finished && d.err == nil {
			list = append(list, d.result)
		}
	}

	if err != nil {
		return list, err
	}

	return list, failure.AlreadyReported(b.codes)
}

// failedSuffix returns the end of a summary with the number of failures.
func failedSuffix(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d failed", n)
}

// runner is the state of Run.
type runner[R any] struct {
	*factory.Factory
	past, kind string
	progress   Progress

	mu      sync.Mutex
	all     []outcome[R]
	next    int // the first object whose result has not been printed
	ok      int
	printed bool  // the operation prints sentences for people
	codes   []int // the exit codes of failures that were printed or counted
}

// runOnEach calls do for each object. It returns only errors that concern all of them.
func (b *runner[R]) runOnEach(ctx context.Context, do func(context.Context, int) (R, string, error)) error {
	return Parallel(ctx, len(b.all), func(i int) error {
		of, said, err := do(ctx, i)
		b.mu.Lock()
		defer b.mu.Unlock()

		if err != nil && (ctx.Err() != nil || len(b.all) == 1 || b.IsHopeless(err)) {
			return err // the error concerns the whole operation, so it is not the result of this object
		}

		b.all[i] = outcome[R]{of, said, err, true}
		b.reportInOrder()
		b.progress.Step(b.ok, len(b.codes))

		return nil
	})
}

// reportRest prints results after an object that was not processed.
func (b *runner[R]) reportRest() {
	for ; b.next < len(b.all); b.next++ {
		if d := b.all[b.next]; d.finished {
			b.reportOne(d)
		}
	}
}

// reportInOrder prints finished results in the order of the objects.
func (b *runner[R]) reportInOrder() {
	for ; b.next < len(b.all) && b.all[b.next].finished; b.next++ {
		b.reportOne(b.all[b.next])
	}
}

// reportOne prints one result.
func (b *runner[R]) reportOne(d outcome[R]) {
	switch {
	case d.err != nil && len(b.codes) < Few:
		b.codes = append(b.codes, b.progress.Report(b.Factory, d.err))
	case d.err != nil:
		if len(b.codes) == Few {
			b.progress.Print(b.Factory, "more failed; their errors are not shown")
		}
		b.codes = append(b.codes, b.Explain(d.err).Exit)
	default:
		b.ok++
		b.printed = b.printed || d.message != ""
		if d.message != "" && len(b.all) <= Few {
			b.Say("%s", d.message)
		}
	}
}
