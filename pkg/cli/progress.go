package cli

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"

	"github.com/carillonhq/carillon/pkg/client"
)

// teller shows how far a long work is: with a bar on a terminal, else with a
// line now and then. Work that is over soon shows nothing. The zero teller shows
// nothing at all.
type teller struct {
	app   *app
	past  string // what has been done: "applied"
	total int    // 0: nobody knows
	tty   bool   // the standard error is a terminal that can take a bar
	bar   progress.Writer
	track *progress.Tracker
	over  chan struct{} // closed when the bar is gone
	begun time.Time
	last  time.Time
}

const (
	barAfter  = 500 * time.Millisecond
	lineEvery = 10 * time.Second
)

// tell begins to tell of a work of so many steps; 0 if nobody knows.
func (a *app) tell(total int) teller { return a.telling("applied", total) }

// telling is tell of a work that is called so when it is done.
func (a *app) telling(past string, total int) teller {
	now := a.Now()
	_, tty := a.Terminal(a.Err)
	t := teller{app: a, past: past, total: total, tty: tty && a.Env("TERM") != "dumb", begun: now, last: now}
	t.track = &progress.Tracker{Message: past, Total: int64(total), RemoveOnCompletion: true, DeferStart: true}
	t.track.Start() // its rate counts from here, not from when the bar shows
	return t
}

func (t *teller) many() bool { return t.total > few }

// step says how many are done, and how many of them failed.
func (t *teller) step(done, failed int) {
	if t.app == nil || t.app.Quiet || !t.app.ForPeople() {
		return
	}
	now := t.app.Now()
	switch {
	case t.bar != nil:
		t.track.SetValue(int64(done + failed))
	case t.tty && now.Sub(t.begun) > barAfter:
		t.show()
	case !t.tty && now.Sub(t.last) >= lineEvery:
		t.last = now
		of := ""
		if t.total > 0 {
			of = fmt.Sprintf(" of %d", t.total)
		}
		t.app.Note("%d%s %s, %d failed, %.0f/s", done, of, t.past, failed, float64(done+failed)/now.Sub(t.begun).Seconds())
	}
}

// show puts the bar up. It has no colours.
func (t *teller) show() {
	t.bar, t.over = progress.NewWriter(), make(chan struct{})
	style := progress.StyleBlocks
	if t.app.ASCII {
		style = progress.StyleDefault
	}
	style.Colors = progress.StyleColors{}
	style.Visibility = progress.StyleVisibility{Time: true, ETA: t.total > 0, Percentage: t.total > 0, Speed: true, Tracker: true, Value: true}
	style.Options.TimeInProgressPrecision = time.Second
	t.bar.SetStyle(style)
	t.bar.SetOutputWriter(t.app.Err)
	t.bar.SetTrackerLength(30)
	t.bar.SetUpdateFrequency(100 * time.Millisecond)
	t.bar.SetTrackerPosition(progress.PositionRight)
	t.bar.AppendTracker(t.track)
	go func() { defer close(t.over); t.bar.Render() }()
}

// end takes the bar away.
func (t *teller) end() {
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

// report is app.report, above the bar.
func (t *teller) report(a *app, err error) int {
	if t.bar == nil {
		return a.report(err)
	}
	var b bytes.Buffer
	above := *a
	above.Color = "never"
	if a.UsesColor(a.Err) {
		above.Color = "always"
	}
	above.Err = &b
	exit := above.report(err)
	a.hinted = above.hinted
	t.bar.Log("%s", strings.TrimSuffix(b.String(), "\n"))
	return exit
}

func (t *teller) print(a *app, words string) {
	if t.bar == nil {
		a.Note("%s", words)
		return
	}
	t.bar.Log("%s", words)
}

// answer is a result of a batch, or what ended it.
type answer struct {
	client.BatchResult
	err error
}

// pulled makes a channel of results, for a select. They end with ctx; then gone
// is closed.
func pulled(ctx context.Context, results iter.Seq2[client.BatchResult, error]) (answers <-chan answer, gone <-chan struct{}) {
	out, over := make(chan answer, few), make(chan struct{})
	go func() {
		defer close(over)
		defer close(out)
		for r, err := range results {
			select {
			case out <- answer{r, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, over
}
