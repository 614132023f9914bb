package cli

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/cli/failure"
)

// atOnce is how many calls are under way at a time, where there are many.
const atOnce = 16

// parallel calls do for 0 to n-1, some at a time, until one fails or ctx ends.
func parallel(ctx context.Context, n int, do func(i int) error) error {
	g, going := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
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

// done is what became of one of many things.
type done[R any] struct {
	of   R
	said string // for a person
	err  error
	over bool
}

// many does the same to many things, some at a time, and returns what came of
// those where it succeeded, in their order. said is the sentence for people; few
// things have one each, many are only counted. Errors are told as they come, and
// the others go on. verb is what is done, past what has been: "pause", "paused".
func many[T, R any](ctx context.Context, a *app, verb, past, kind string, things []T, do func(context.Context, T) (R, string, error)) ([]R, error) {
	b := &batch[R]{app: a, past: past, kind: kind, all: make([]done[R], len(things))}
	b.told = a.telling(past, len(things))
	err := b.run(ctx, func(ctx context.Context, i int) (R, string, error) { return do(ctx, things[i]) })
	b.told.end()
	b.rest()
	if a.ForPeople() && len(things) > few && b.spoken {
		a.Say("%s %d %ss%s", past, b.ok, kind, failedWords(len(b.codes)))
	}
	if ctx.Err() != nil && len(things) > 1 && b.spoken {
		a.Note("interrupted: %s %d of %d %ss%s; %s the others with the same command", past, b.ok, len(things), kind, failedWords(len(b.codes)), verb)
	}
	list := make([]R, 0, b.ok)
	for _, d := range b.all {
		if d.over && d.err == nil {
			list = append(list, d.of)
		}
	}
	if err != nil {
		return list, err
	}
	return list, failure.AlreadyReported(b.codes)
}

func failedWords(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d failed", n)
}

// batch is many while it goes on.
type batch[R any] struct {
	*app
	past, kind string
	told       teller

	mu     sync.Mutex
	all    []done[R]
	next   int // the first of which nothing was told
	ok     int
	spoken bool  // people are told of each, or of how many
	codes  []int // exit codes of what failed, told already
}

func (b *batch[R]) run(ctx context.Context, do func(context.Context, int) (R, string, error)) error {
	return parallel(ctx, len(b.all), func(i int) error {
		of, said, err := do(ctx, i)
		b.mu.Lock()
		defer b.mu.Unlock()
		if err != nil && (ctx.Err() != nil || len(b.all) == 1 || b.hopeless(err)) {
			return err // of the whole, and not over: none of its neighbours tells it as one's own
		}
		b.all[i] = done[R]{of, said, err, true}
		b.tell()
		b.told.step(b.ok, len(b.codes))
		return nil
	})
}

// rest tells what was done behind something that was not.
func (b *batch[R]) rest() {
	for ; b.next < len(b.all); b.next++ {
		if d := b.all[b.next]; d.over {
			b.tellOne(d)
		}
	}
}

// tell tells what is done, in the order in which it was asked for.
func (b *batch[R]) tell() {
	for ; b.next < len(b.all) && b.all[b.next].over; b.next++ {
		b.tellOne(b.all[b.next])
	}
}

func (b *batch[R]) tellOne(d done[R]) {
	switch {
	case d.err != nil && len(b.codes) < few:
		b.codes = append(b.codes, b.told.report(b.app, d.err))
	case d.err != nil:
		if len(b.codes) == few {
			b.told.print(b.app, "more failed; the others are only counted")
		}
		b.codes = append(b.codes, b.explain(d.err).Exit)
	default:
		b.ok++
		b.spoken = b.spoken || d.said != ""
		if d.said != "" && len(b.all) <= few {
			b.Say("%s", d.said)
		}
	}
}
