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

// Progress shows how far a long work is: with a bar on a terminal, else with a
// line now and then. Work that is over soon shows nothing. The zero Progress shows
// nothing at all.
type Progress struct {
	factory *factory.Factory
	past    string // what has been done: "applied"
	total   int    // 0: nobody knows
	tty     bool   // the standard error is a terminal that can take a bar
	bar     progress.Writer
	track   *progress.Tracker
	over    chan struct{} // closed when the bar is gone
	begun   time.Time
	last    time.Time
}

const (
	barAfter     = 500 * time.Millisecond
	LineInterval = 10 * time.Second
)

// NewApplyProgress begins to tell of a work of so many steps; 0 if nobody knows.
func NewApplyProgress(f *factory.Factory, total int) Progress {
	return NewProgress(f, "applied", total)
}

// NewProgress is tell of a work that is called so when it is done.
func NewProgress(f *factory.Factory, past string, total int) Progress {
	now := f.Now()
	_, tty := f.Terminal(f.Err)
	t := Progress{factory: f, past: past, total: total, tty: tty && f.Env("TERM") != "dumb", begun: now, last: now}
	t.track = &progress.Tracker{Message: past, Total: int64(total), RemoveOnCompletion: true, DeferStart: true}
	t.track.Start() // its rate counts from here, not from when the bar shows

	return t
}

// HasMany reports whether there are so many steps that single ones are not told.
func (t *Progress) HasMany() bool { return t.total > Few }

// Step says how many are done, and how many of them failed.
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

// showBar puts the bar up. It has no colours.
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

// Close takes the bar away.
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

// Report reports an error as Factory.Report does, above the bar.
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

// Print tells a person something, above the bar if there is one.
func (t *Progress) Print(f *factory.Factory, words string) {
	if t.bar == nil {
		f.Note("%s", words)
		return
	}
	t.bar.Log("%s", words)
}

// Result is a result of a batch, or what ended it.
type Result struct {
	client.BatchResult
	Err error
}

// Results makes a channel of results, for a select. They end with ctx; then gone
// is closed.
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
