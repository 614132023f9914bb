// Package watch shows a list and keeps it up to date. On a terminal it redraws the list; otherwise it prints a
// line for each change. Events only show that something may have changed; the current state is then read.
package watch

import (
	"context"
	"errors"
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

// List is a list that is kept up to date. Events show which items may have changed. If possible, only these are
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
	Footer     func() string                                         // a line below the list as it was last read; "": none; may be nil

	// Rescan, if set, is how often the whole list is read again on a terminal. In between, only the items on the screen
	// are read, with Reread. It is for lists that are expensive to read, or that may be older than the events.
	Rescan time.Duration
	// Partial says that Reread and the events do not show which items join or leave the list. Then the list is read
	// again at that interval elsewhere, too.
	Partial bool

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
	began := w.Now()
	list, err := w.Read(ctx, 0)
	if err != nil {
		return err
	}
	if err := w.printItems(list, true); err != nil {
		return err
	}

	footer := w.noteFooter("")
	rescan, stop := w.startRescans()
	defer stop()
	rest := w.restAfter(began)

	for w.Done == nil || !w.Done(list) {
		touched, err := w.waitForChange(ctx, ended, rescan)
		if err != nil {
			return err
		}

		keys, all := w.takeDirty()
		if w.Partial {
			keys = slices.DeleteFunc(keys, func(k string) bool { _, known := w.shown[k]; return !known })
			all = all || !touched && !w.Now().Before(rest)
		}

		switch {
		case all || w.Reread == nil:
			began := w.Now()
			if list, err = w.Read(ctx, 0); err == nil {
				err = w.printChanged(list, nil)
				footer, rest = w.noteFooter(footer), w.restAfter(began)
			}
		case len(keys) > 0:
			if list, err = w.Reread(ctx, keys); err == nil {
				err = w.printChanged(list, keys)
			}
		}

		if err != nil && !canWait(err) {
			return err
		}
	}

	return nil
}

// canWait reports whether a read can be tried again later: the server does not answer, which followEvents reports, or it
// is busy.
func canWait(err error) bool {
	var e *client.Error
	return failure.IsUnreachable(err) || errors.As(err, &e) && e.Code == client.CodeBusy
}

// startRescans returns a channel that delivers when to read a list again, if it is Partial, and a function that ends it.
func (w *List[T]) startRescans() (<-chan time.Time, func()) {
	if !w.Partial || w.Rescan <= 0 {
		return nil, func() {}
	}

	t := time.NewTicker(w.Rescan)

	return t.C, t.Stop
}

// restAfter returns when the list may be read again, after a read that has just ended.
func (w *List[T]) restAfter(began time.Time) time.Time {
	return w.Now().Add(max(watchShare*w.Now().Sub(began), settleTime))
}

// noteFooter prints the footer if it differs from the last one, and returns it.
func (w *List[T]) noteFooter(last string) string {
	if w.Footer == nil {
		return ""
	}

	text := w.Footer()
	if text != last && text != "" {
		w.Note("%s", text)
	}

	return text
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
	var rest, next time.Time // no read before rest, and none of a list with Rescan before next
	stale := true
	for {
		now := w.Now()
		if (stale || w.Rescan > 0 && !now.Before(next)) && !now.Before(rest) {
			some, err := w.Read(ctx, max(output.TerminalHeight(w.Out)-3, 1))
			if err != nil && !canWait(err) {
				return err
			}

			if err == nil {
				list, stale = some, false
			}

			rest, next = w.restAfter(now), now.Add(w.Rescan)
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
			keys, all := w.takeDirty()
			if w.Rescan > 0 && w.Reread != nil && !all {
				if list, err = w.rereadShown(ctx, list, keys); err != nil && !canWait(err) {
					return err
				}
				continue
			}

			stale = true
		}

		stale = stale || w.Moving != nil && w.Moving(list)
	}
}

// rereadShown reads those items of a list again that have changed. Items that no longer belong to it are dropped.
func (w *List[T]) rereadShown(ctx context.Context, list []T, changed []string) ([]T, error) {
	var keys []string
	for _, item := range list {
		if k := w.Key(item); slices.Contains(changed, k) {
			keys = append(keys, k)
		}
	}

	if len(keys) == 0 {
		return list, nil
	}

	found, err := w.Reread(ctx, keys)
	if err != nil {
		return list, err
	}

	current := make(map[string]T, len(found))
	for _, item := range found {
		current[w.Key(item)] = item
	}

	var kept []T
	for _, item := range list {
		k := w.Key(item)
		now, there := current[k]

		switch {
		case there:
			kept = append(kept, now)
		case !slices.Contains(keys, k):
			kept = append(kept, item)
		}
	}

	return kept, nil
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

	if w.Footer != nil {
		if text := w.Footer(); text != "" {
			drawn += text + "\n"
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
