package batch

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/client"
)

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
func (t *Progress) HasMany() bool { return t.total > Few }

// Step updates the progress. failed counts failures in addition to done.
func (t *Progress) Step(done, failed int) {
	if t.factory == nil || t.factory.Quiet || !t.factory.ForPeople() {
		return
	}

	now := t.factory.Now()
	switch {
	case t.bar != nil:
		t.track.SetValue(int64(done + failed))
	case t.tty && now.Sub(t.begun) > barAfter:
		t.showBar()
	case !t.tty && now.Sub(t.last) >= LineInterval:
		t.last = now
		of := ""
		if t.total > 0 {
			of = fmt.Sprintf(" of %d", t.total)
		}

		t.factory.Note("%d%s %s, %d failed, %.0f/s", done, of, t.past, failed, float64(done+failed)/now.Sub(t.begun).Seconds())
	}
}

// showBar shows the bar, without colors.
func (t *Progress) showBar() {
	t.bar, t.over = progress.NewWriter(), make(chan struct{})
	style := progress.StyleBlocks
	if t.factory.ASCII {
		style = progress.StyleDefault
	}

	style.Colors = progress.StyleColors{}
	style.Visibility = progress.StyleVisibility{Time: true, ETA: t.total > 0, Percentage: t.total > 0, Speed: true, Tracker: true, Value: true}
	style.Options.TimeInProgressPrecision = time.Second
	t.bar.SetStyle(style)
	t.bar.SetOutputWriter(t.factory.Err)
	t.bar.SetTrackerLength(30)
	t.bar.SetUpdateFrequency(100 * time.Millisecond)
	t.bar.SetTrackerPosition(progress.PositionRight)
	t.bar.AppendTracker(t.track)
	go func() { defer close(t.over); t.bar.Render() }()
}

// Close removes the bar.
func (t *Progress) Close() {
	if t.bar == nil {
		return
	}

	t.track.MarkAsDone()

	for !t.bar.IsRenderInProgress() {
		select {
		case <-t.over:
			return
		case <-time.After(time.Millisecond):
		}
	}

	t.bar.Stop()
	<-t.over
	t.bar = nil
}

// Report prints an error like Factory.Report, above the bar.
func (t *Progress) Report(f *factory.Factory, err error) int {
	if t.bar == nil {
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
	t.bar.Log("%s", strings.TrimSuffix(b.String(), "\n"))

	return exit
}

// Print prints a message, above the bar if there is one.
func (t *Progress) Print(f *factory.Factory, words string) {
	if t.bar == nil {
		f.Note("%s", words)
		return
	}
	t.bar.Log("%s", words)
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
