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
	"github.com/carillonhq/carillon/pkg/wake"
)

// BindFlag declares -w.
func BindFlag(cmd *cobra.Command, watch *bool) {
	cmd.Flags().BoolVarP(watch, "watch", "w", false, "keep watching: redraw on a terminal, print one line per change elsewhere")
}

// List is a list that is kept up to date. Events tell which items may have changed. If possible, only these are
// read again.
type List[T any] struct {
	*factory.Factory
	Client *client.Client
	Events client.EventOptions
	// Affects returns the key of the item that an event affects, or "" if it is unknown. ok is false if the
	// event affects no item.
	Affects    func(e task.Event) (key string, ok bool)
	Read       func(ctx context.Context, limit int) ([]T, error)     // limit 0: no limit
	Reread     func(ctx context.Context, keys []string) ([]T, error) // returns the items that are still in the list; nil: Read is called
	Table      func(list []T, wide bool) *output.Table               // returns the table
	Page       func(list []T) string                                 // on a terminal, replaces the table if there is one item; may be nil
	Key        func(T) string                                        // identifies an item
	Name       func(T) string                                        // for -o name
	Comparable func(T) any                                           // a value that differs if the item has changed
	Removed    func(key string) any                                  // what is printed for programs if an item has left the list
	Done       func(list []T) bool                                   // nothing can change any more; may be nil
	Moving     func(list []T) bool                                   // the list changes without events; used on a terminal; may be nil

	mu    sync.Mutex
	dirty map[string]bool
	poked wake.Signal

	shown  map[string]uint64 // a hash of what was printed for each item
	seed   maphash.Seed
	widths []int
}

const (
	watchBefore = 2 * time.Second        // events before the first read that are included
	settleTime  = 200 * time.Millisecond // how long to wait for further events
	watchClock  = time.Second            // how often the times in LEFT are updated
	watchShare  = 9                      // after a read, wait this many times as long as it took
	maxDirty    = 20_000
)

// Run shows the list until Done returns true, the events end, or ctx does.
func (w *List[T]) Run(ctx context.Context) error {
	w.dirty, w.shown, w.poked, w.seed = map[string]bool{}, map[string]uint64{}, wake.NewSignal(), maphash.MakeSeed()
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

// followEvents marks the items that events affect, until the events end.
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

// markDirty marks an item as changed. "" marks all items.
func (w *List[T]) markDirty(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if len(w.dirty) >= maxDirty {
		key = ""
	}

	w.dirty[key] = true
	w.poked.Send()
}

// takeDirty returns the items that were marked since the last call. all is true if any item may have changed.
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

// waitForChange waits until an item is marked and no further events follow at once.
func (w *List[T]) waitForChange(ctx context.Context, ended <-chan error, clock <-chan time.Time) (touched bool, err error) {
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case err := <-ended:
		return false, err
	case <-clock:
		return false, nil
	case <-w.poked:
		return true, factory.Sleep(ctx, settleTime)
	}
}

// printChanges prints the list, and then a line for each change.
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

		if err != nil && !failure.IsUnreachable(err) { // followEvents reports when the server is back
			return err
		}
	}

	return nil
}

// printChanged prints the items that differ from what was printed. Of the keys in looked (nil: all), it reports
// those that are no longer in the list.
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

// fingerprint returns a hash of an item.
func (w *List[T]) fingerprint(item T) uint64 {
	b, _ := output.CompactJSON(w.Comparable(item)) // it was read as JSON, so this cannot fail
	return maphash.Bytes(w.seed, b)
}

// printItems prints items. begin is true for the first output.
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

// tellGone reports that an item has left the list.
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

	return w.Print(key + "  " + w.Paint(output.Dim, "no longer in the list") + "\n")
}

// formatRows formats lines of a table. Columns keep their widths as long as their contents fit.
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

// redrawScreen keeps a terminal's screen up to date. It reads only as many items as fit on the screen, so that
// a read is cheap however long the list is. If a read takes long, it reads less often.
func (w *List[T]) redrawScreen(ctx context.Context, ended <-chan error) error {
	clock := time.NewTicker(watchClock)
	defer clock.Stop()

	const cleared = "\x1b[2J"
	if err := w.Print(cleared); err != nil {
		return err
	}

	var list []T
	var rest time.Time // no read before this time
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

			rest = w.Now().Add(max(watchShare*w.Now().Sub(began), settleTime))
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

// Removed is printed for programs if an item has left the list, because it was deleted or no longer matches.
type Removed struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ID        string `json:"id,omitempty"`
	Left      bool   `json:"left_list"`
}
