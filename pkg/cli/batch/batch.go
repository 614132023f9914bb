package batch

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
)

// maxParallel is how many calls are under way at a time, where there are many.
const maxParallel = 16

// Parallel calls do for 0 to n-1, some at a time, until one fails or ctx ends.
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

// outcome is what became of one of many things.
type outcome[R any] struct {
	result   R
	message  string // for a person
	err      error
	finished bool
}

// Run does the same to many things, some at a time, and returns what came of
// those where it succeeded, in their order. said is the sentence for people; few
// things have one each, many are only counted. Errors are told as they come, and
// the others go on. verb is what is done, past what has been: "pause", "paused".
func Run[T, R any](ctx context.Context, f *factory.Factory, verb, past, kind string, things []T, do func(context.Context, T) (R, string, error)) ([]R, error) {
	b := &runner[R]{Factory: f, past: past, kind: kind, all: make([]outcome[R], len(things))}
	b.progress = NewProgress(f, past, len(things))
	err := b.runOnEach(ctx, func(ctx context.Context, i int) (R, string, error) { return do(ctx, things[i]) })
	b.progress.Close()
	b.reportRest()

	if f.ForPeople() && len(things) > Few && b.spoke {
		f.Say("%s %d %ss%s", past, b.ok, kind, failedSuffix(len(b.codes)))
	}

	if ctx.Err() != nil && len(things) > 1 && b.spoke {
		f.Note("interrupted: %s %d of %d %ss%s; %s the others with the same command", past, b.ok, len(things), kind, failedSuffix(len(b.codes)), verb)
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

func failedSuffix(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d failed", n)
}

// runner is many while it goes on.
type runner[R any] struct {
	*factory.Factory
	past, kind string
	progress   Progress

	mu    sync.Mutex
	all   []outcome[R]
	next  int // the first of which nothing was told
	ok    int
	spoke bool  // people are told of each, or of how many
	codes []int // exit codes of what failed, told already
}

func (b *runner[R]) runOnEach(ctx context.Context, do func(context.Context, int) (R, string, error)) error {
	return Parallel(ctx, len(b.all), func(i int) error {
		of, said, err := do(ctx, i)
		b.mu.Lock()
		defer b.mu.Unlock()

		if err != nil && (ctx.Err() != nil || len(b.all) == 1 || b.IsHopeless(err)) {
			return err // of the whole, and not over: none of its neighbours tells it as one's own
		}

		b.all[i] = outcome[R]{of, said, err, true}
		b.reportInOrder()
		b.progress.Step(b.ok, len(b.codes))

		return nil
	})
}

// reportRest tells what was done behind something that was not.
func (b *runner[R]) reportRest() {
	for ; b.next < len(b.all); b.next++ {
		if d := b.all[b.next]; d.finished {
			b.reportOne(d)
		}
	}
}

// reportInOrder tells what is done, in the order in which it was asked for.
func (b *runner[R]) reportInOrder() {
	for ; b.next < len(b.all) && b.all[b.next].finished; b.next++ {
		b.reportOne(b.all[b.next])
	}
}

func (b *runner[R]) reportOne(d outcome[R]) {
	switch {
	case d.err != nil && len(b.codes) < Few:
		b.codes = append(b.codes, b.progress.Report(b.Factory, d.err))
	case d.err != nil:
		if len(b.codes) == Few {
			b.progress.Print(b.Factory, "more failed; the others are only counted")
		}
		b.codes = append(b.codes, b.Explain(d.err).Exit)
	default:
		b.ok++
		b.spoke = b.spoke || d.message != ""
		if d.message != "" && len(b.all) <= Few {
			b.Say("%s", d.message)
		}
	}
}
