package watch

import (
	"context"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// BindFlag declares -w.
func BindFlag(cmd *cobra.Command, watch *bool) {
	cmd.Flags().BoolVarP(watch, "watch", "w", false, "keep watching: redraw on a terminal, print one line per change elsewhere")
}

// List is a list that is shown while it changes. Events say that something may
// have changed, and what; what it is now is read again, that alone where it can be.
type List[T any] struct {
	*factory.Factory
	Client *client.Client
	Events client.EventOptions
	// about is the item that an event is about; "" if that cannot be told. false: none.
	Affects    func(e task.Event) (key string, ok bool)
	Read       func(ctx context.Context, limit int) ([]T, error)     // limit 0: all of it
	Reread     func(ctx context.Context, keys []string) ([]T, error) // those that are still in the list; nil: list tells
	Table      func(list []T, wide bool) *output.Table               // as a table
	Page       func(list []T) string                                 // instead of a table, on a terminal; may be nil
	Key        func(T) string                                        // what tells an item from the others
	Name       func(T) string                                        // for -o name
	Comparable func(T) any                                           // what has to differ for it to be a change
	Removed    func(key string) any                                  // what programs are told of one that left the list
	Done       func(list []T) bool                                   // nothing more can change; may be nil
	Moving     func(list []T) bool                                   // it changes without an event, on a terminal; may be nil

	mu    sync.Mutex
	dirty map[string]bool
	poked chan struct{}

	shown  map[string]uint64 // what was told of each
	seed   maphash.Seed
	widths []int
}

const (
	watchBefore = 2 * time.Second        // events from so long before the first look on
	watchCalm   = 200 * time.Millisecond // more may follow
	watchClock  = time.Second            // how often what is LEFT is drawn anew
	watchShare  = 9                      // after a look that took so long, none for so many times that
	maxDirty    = 20_000
)

// Run shows the list until it is Done, the events end, or ctx does.
func (w *List[T]) Run(ctx context.Context) error {
	w.dirty, w.shown, w.poked, w.seed = map[string]bool{}, map[string]uint64{}, make(chan struct{}, 1), maphash.MakeSeed()
	w.Events.Since = w.Now().Add(-watchBefore)
	w.Events.Lost = func(err error) {
		if err == nil {
			w.Note("the server is back")
			w.markDirty("")
			return
		}

		w.Note("waiting for the server: %s", err)
	}

	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	wg.Go(func() { ended <- w.followEvents(ctx) })

	if _, tty := w.Terminal(w.Out); tty && w.ForPeople() {
		return w.redrawScreen(ctx, ended)
	}

	return w.printChanges(ctx, ended)
}

// followEvents notes what events are about, until they end.
func (w *List[T]) followEvents(ctx context.Context) error {
	for e, err := range w.Client.Events.Follow(ctx, w.Events) {
		if err != nil {
			return err
		}

		key, ok := "", e.Kind == task.EventGap
		if !ok {
			key, ok = w.Affects(e)
		}

		if ok {
			w.markDirty(key)
		}
	}

	return ctx.Err()
}

func (w *List[T]) markDirty(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if len(w.dirty) >= maxDirty {
		key = ""
	}

	w.dirty[key] = true
	select {
	case w.poked <- struct{}{}:
	default:
	}
}

// takeDirty is what has been touched since it was called last; all: anything may be.
func (w *List[T]) takeDirty() (keys []string, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()

	for k := range w.dirty {
		keys = append(keys, k)
	}

	slices.Sort(keys)
	all = w.dirty[""]
	clear(w.dirty)

	return keys, all
}

// waitForChange waits until something was touched, and until no more follows at once.
func (w *List[T]) waitForChange(ctx context.Context, ended <-chan error, clock <-chan time.Time) (touched bool, err error) {
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case err := <-ended:
		return false, err
	case <-clock:
		return false, nil
	case <-w.poked:
		return true, factory.Sleep(ctx, watchCalm)
	}
}

// printChanges tells all there is, and then each change, in a line.
func (w *List[T]) printChanges(ctx context.Context, ended <-chan error) error {
	list, err := w.Read(ctx, 0)
	if err != nil {
		return err
	}
	if err := w.printItems(list, true); err != nil {
		return err
	}

	for w.Done == nil || !w.Done(list) {
		if _, err := w.waitForChange(ctx, ended, nil); err != nil {
			return err
		}

		keys, all := w.takeDirty()
		switch {
		case all || w.Reread == nil:
			if list, err = w.Read(ctx, 0); err == nil {
				err = w.printChanged(list, nil)
			}
		case len(keys) > 0:
			if list, err = w.Reread(ctx, keys); err == nil {
				err = w.printChanged(list, keys)
			}
		}

		if err != nil && !failure.IsUnreachable(err) { // the stream says when the server is back
			return err
		}
	}

	return nil
}

// printChanged tells those of a list that differ from what was told of them, and which of
// those that were looked for (nil: of all) are in it no more.
func (w *List[T]) printChanged(list []T, looked []string) error {
	there := make(map[string]bool, len(list))
	var news []T
	for _, item := range list {
		k := w.Key(item)
		there[k] = true
		if was, known := w.shown[k]; !known || was != w.fingerprint(item) {
			news = append(news, item)
		}
	}

	if looked == nil {
		for k := range w.shown {
			looked = append(looked, k)
		}
		slices.Sort(looked)
	}

	if err := w.printItems(news, false); err != nil {
		return err
	}

	for _, k := range looked {
		if _, known := w.shown[k]; known && !there[k] {
			delete(w.shown, k)
			if err := w.tellGone(k); err != nil {
				return err
			}
		}
	}

	return nil
}

func (w *List[T]) fingerprint(item T) uint64 {
	b, _ := output.CompactJSON(w.Comparable(item)) // what has just been read as JSON can be written
	return maphash.Bytes(w.seed, b)
}

func (w *List[T]) printItems(list []T, begin bool) error {
	for _, item := range list {
		w.shown[w.Key(item)] = w.fingerprint(item)
	}

	switch {
	case w.ForPeople():
		g, err := w.SelectColumns(w.Table(list, w.Format == output.FormatWide || len(w.Columns) > 0))
		if err != nil {
			return err
		}
		return w.Print(w.formatRows(g, begin && !w.NoHeaders))
	case w.Format == output.FormatJSON:
		for _, item := range list {
			if err := w.EmitJSON(item); err != nil {
				return err
			}
		}

		return nil
	case w.Format == output.FormatYAML:
		for _, item := range list {
			err := w.Print("---\n")
			if err == nil {
				err = w.EmitYAML(1, func(int) any { return item })
			}

			if err != nil {
				return err
			}
		}

		return nil
	}

	return output.EmitList(&w.Factory.Printer, list, w.Name, nil)
}

func (w *List[T]) tellGone(key string) error {
	switch w.Format {
	case output.FormatJSON, output.FormatJSONL:
		return w.EmitLines(1, func(int) ([]byte, error) { return output.CompactJSON(w.Removed(key)) })

	case output.FormatYAML:
		if err := w.Print("---\n"); err != nil {
			return err
		}
		return w.EmitYAML(1, func(int) any { return w.Removed(key) })

	case output.FormatName:
		return nil
	}

	return w.Print(key + "  " + w.Paint(output.Dim, "not in the list any more") + "\n")
}

// formatRows are lines of a table whose columns keep the width that they had, as long as
// what is in them fits.
func (w *List[T]) formatRows(g *output.Table, heads bool) string {
	all := g.Rows
	if heads {
		all = append([][]string{g.Headers}, all...)
	}

	for _, row := range append([][]string{g.Headers}, g.Rows...) {
		for i, cell := range row {
			if i == len(w.widths) {
				w.widths = append(w.widths, 0)
			}
			w.widths[i] = max(w.widths[i], text.StringWidthWithoutEscSequences(cell))
		}
	}

	var b strings.Builder

	for _, row := range all {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(text.Pad(cell, w.widths[i], ' ') + "  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}

	return b.String()
}

// redrawScreen keeps a terminal's screen up to date. What is shown fits on it, so that a
// look at it costs little however long the list is; a look that costs more anyway
// is taken less often.
func (w *List[T]) redrawScreen(ctx context.Context, ended <-chan error) error {
	clock := time.NewTicker(watchClock)
	defer clock.Stop()

	const cleared = "\x1b[2J"
	if err := w.Print(cleared); err != nil {
		return err
	}

	var list []T
	var rest time.Time // until then no look
	stale := true
	for {
		if stale && !w.Now().Before(rest) {
			began := w.Now()
			some, err := w.Read(ctx, max(output.TerminalHeight(w.Out)-3, 1))
			if err != nil && !failure.IsUnreachable(err) {
				return err
			}

			if err == nil {
				list, stale = some, false
			}

			rest = w.Now().Add(max(watchShare*w.Now().Sub(began), watchCalm))
		}

		if err := w.drawScreen(list); err != nil {
			return err
		}
		if w.Done != nil && w.Done(list) {
			return nil
		}

		touched, err := w.waitForChange(ctx, ended, clock.C)
		if err != nil {
			return err
		}

		if touched {
			w.takeDirty()
			stale = true
		}

		stale = stale || w.Moving != nil && w.Moving(list)
	}
}

// drawScreen draws the list over what was drawn before.
func (w *List[T]) drawScreen(list []T) error {
	var drawn string
	if w.Page != nil && len(list) == 1 {
		drawn = w.Page(list)
	} else {
		g, err := w.SelectColumns(w.Table(list, w.Format == output.FormatWide || len(w.Columns) > 0))
		if err != nil {
			return err
		}

		if len(g.Rows) == 0 {
			drawn = g.Empty + "\n"
		} else {
			drawn = g.Render(&w.Factory.Printer)
		}
	}

	var b strings.Builder
	b.WriteString("\x1b[H")

	room := max(output.TerminalHeight(w.Out)-1, 2)
	for line := range strings.Lines(drawn) {
		if room--; room < 0 {
			break
		}
		b.WriteString(strings.TrimSuffix(line, "\n") + "\x1b[K\n")
	}

	return w.Print(b.String() + "\x1b[J")
}

// Removed tells programs that something is in a list no more: it was deleted, or does
// not match any longer.
type Removed struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ID        string `json:"id,omitempty"`
	Left      bool   `json:"left_list"`
}
