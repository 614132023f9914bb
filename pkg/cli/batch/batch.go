// Package batch applies one operation to many objects, several at a time. It prints errors as they occur and
// continues, keeps the order of results, shows progress, and returns the exit code that all failures share. It
// ends early if the server does not answer or rejects the user.
package batch

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/client"
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
func (r *runner[R]) runOnEach(ctx context.Context, do func(context.Context, int) (R, string, error)) error {
	return Parallel(ctx, len(r.all), func(i int) error {
		of, said, err := do(ctx, i)
		r.mu.Lock()
		defer r.mu.Unlock()

		if err != nil && (ctx.Err() != nil || len(r.all) == 1 || r.IsHopeless(err)) {
			return err // the error concerns the whole operation, so it is not the result of this object
		}

		r.all[i] = outcome[R]{of, said, err, true}
		r.reportInOrder()
		r.progress.Step(r.ok, len(r.codes))

		return nil
	})
}

// reportRest prints results after an object that was not processed.
func (r *runner[R]) reportRest() {
	for ; r.next < len(r.all); r.next++ {
		if d := r.all[r.next]; d.finished {
			r.reportOne(d)
		}
	}
}

// reportInOrder prints finished results in the order of the objects.
func (r *runner[R]) reportInOrder() {
	for ; r.next < len(r.all) && r.all[r.next].finished; r.next++ {
		r.reportOne(r.all[r.next])
	}
}

// reportOne prints one result.
func (r *runner[R]) reportOne(d outcome[R]) {
	switch {
	case d.err != nil && len(r.codes) < Few:
		r.codes = append(r.codes, r.progress.Report(r.Factory, d.err))
	case d.err != nil:
		if len(r.codes) == Few {
			r.progress.Print(r.Factory, "more failed; their errors are not shown")
		}
		r.codes = append(r.codes, r.Explain(d.err).Exit)
	default:
		r.ok++
		r.printed = r.printed || d.message != ""
		if d.message != "" && len(r.all) <= Few {
			r.Say("%s", d.message)
		}
	}
}

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

// Progress shows the progress of a long operation: a bar on a terminal, otherwise a line from time to time. It
// shows nothing for an operation that ends soon. The zero Progress shows nothing at all.
type Progress struct {
	factory *factory.Factory
	past    string // the name of the operation: "applied"
	total   int    // the number of steps; 0: unknown
	tty     bool   // stderr is a terminal that supports a bar
	bar     progress.Writer
	track   *progress.Tracker
	over    chan struct{} // closed when the bar has been removed
	begun   time.Time
	last    time.Time
}

const (
	// barAfter is when the bar appears. LineInterval is the interval of lines without a terminal.
	barAfter     = 500 * time.Millisecond
	LineInterval = 10 * time.Second
)

// NewApplyProgress returns the Progress of an apply.
func NewApplyProgress(f *factory.Factory, total int) Progress {
	return NewProgress(f, "applied", total)
}

// NewProgress returns the Progress of an operation with total steps (0: unknown).
func NewProgress(f *factory.Factory, past string, total int) Progress {
	now := f.Now()
	_, tty := f.Terminal(f.Err)
	t := Progress{factory: f, past: past, total: total, tty: tty && f.Env("TERM") != "dumb", begun: now, last: now}
	t.track = &progress.Tracker{Message: past, Total: int64(total), RemoveOnCompletion: true, DeferStart: true}
	t.track.Start() // its rate counts from here, and not from when the bar appears

	return t
}

// HasMany reports whether there are too many steps to print each result.
func (p *Progress) HasMany() bool { return p.total > Few }

// Step updates the progress. failed counts failures in addition to done.
func (p *Progress) Step(done, failed int) {
	if p.factory == nil || p.factory.Quiet || !p.factory.ForPeople() {
		return
	}

	now := p.factory.Now()
	switch {
	case p.bar != nil:
		p.track.SetValue(int64(done + failed))
	case p.tty && now.Sub(p.begun) > barAfter:
		p.showBar()
	case !p.tty && now.Sub(p.last) >= LineInterval:
		p.last = now
		of := ""
		if p.total > 0 {
			of = fmt.Sprintf(" of %d", p.total)
		}

		p.factory.Note("%d%s %s, %d failed, %.0f/s", done, of, p.past, failed, float64(done+failed)/now.Sub(p.begun).Seconds())
	}
}

// showBar shows the bar, without colors.
func (p *Progress) showBar() {
	p.bar, p.over = progress.NewWriter(), make(chan struct{})
	style := progress.StyleBlocks
	if p.factory.ASCII {
		style = progress.StyleDefault
	}

	style.Colors = progress.StyleColors{}
	style.Visibility = progress.StyleVisibility{Time: true, ETA: p.total > 0, Percentage: p.total > 0, Speed: true, Tracker: true, Value: true}
	style.Options.TimeInProgressPrecision = time.Second
	p.bar.SetStyle(style)
	p.bar.SetOutputWriter(p.factory.Err)
	p.bar.SetTrackerLength(30)
	p.bar.SetUpdateFrequency(100 * time.Millisecond)
	p.bar.SetTrackerPosition(progress.PositionRight)
	p.bar.AppendTracker(p.track)
	go func() { defer close(p.over); p.bar.Render() }()
}

// Close removes the bar.
func (p *Progress) Close() {
	if p.bar == nil {
		return
	}

	p.track.MarkAsDone()

	for !p.bar.IsRenderInProgress() {
		select {
		case <-p.over:
			return
		case <-time.After(time.Millisecond):
		}
	}

	p.bar.Stop()
	<-p.over
	p.bar = nil
}

// Report prints an error like Factory.Report, above the bar.
func (p *Progress) Report(f *factory.Factory, err error) int {
	if p.bar == nil {
		return f.Report(err)
	}

	var b bytes.Buffer
	above := *f
	above.Color = "never"
	if f.UsesColor(f.Err) {
		above.Color = "always"
	}

	above.Err = &b
	exit := above.Report(err)
	f.LastHint = above.LastHint
	p.bar.Log("%s", strings.TrimSuffix(b.String(), "\n"))

	return exit
}

// Print prints a message, above the bar if there is one.
func (p *Progress) Print(f *factory.Factory, words string) {
	if p.bar == nil {
		f.Note("%s", words)
		return
	}
	p.bar.Log("%s", words)
}

// Result is one result of a batch, or the error that ended it.
type Result struct {
	client.BatchResult
	Err error
}

// Results converts an iterator of results to a channel. It ends with ctx; then gone is closed.
func Results(ctx context.Context, results iter.Seq2[client.BatchResult, error]) (answers <-chan Result, gone <-chan struct{}) {
	out, over := make(chan Result, Few), make(chan struct{})
	go func() {
		defer close(over)
		defer close(out)
		for r, err := range results {
			select {
			case out <- Result{r, err}:
			case <-ctx.Done():
				return
			}
		}
	}()

	return out, over
}
