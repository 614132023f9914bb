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
func (l *List[T]) Run(ctx context.Context) error {
	l.dirty, l.shown, l.poked, l.seed = map[string]bool{}, map[string]uint64{}, wake.NewSignal(), maphash.MakeSeed()
	l.Events.Since = l.Now().Add(-watchBefore)
	l.Events.Lost = func(err error) {
		if err == nil {
			l.Note("the server is back")
			l.markDirty("")
			return
		}

		l.Note("waiting for the server: %s", err)
	}

	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	wg.Go(func() { ended <- l.followEvents(ctx) })

	if _, tty := l.Terminal(l.Out); tty && l.ForPeople() {
		return l.redrawScreen(ctx, ended)
	}

	return l.printChanges(ctx, ended)
}

// followEvents marks the items that events affect, until the events end.
func (l *List[T]) followEvents(ctx context.Context) error {
	for e, err := range l.Client.Events.Follow(ctx, l.Events) {
		if err != nil {
			return err
		}

		key, ok := "", e.Kind == task.EventGap
		if !ok {
			key, ok = l.Affects(e)
		}

		if ok {
			l.markDirty(key)
		}
	}

	return ctx.Err()
}

// markDirty marks an item as changed. "" marks all items.
func (l *List[T]) markDirty(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if len(l.dirty) >= maxDirty {
		key = ""
	}

	l.dirty[key] = true
	l.poked.Send()
}

// takeDirty returns the items that were marked since the last call. all is true if any item may have changed.
func (l *List[T]) takeDirty() (keys []string, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	for k := range l.dirty {
		keys = append(keys, k)
	}

	slices.Sort(keys)
	all = l.dirty[""]
	clear(l.dirty)

	return keys, all
}

// waitForChange waits until an item is marked and no further events follow at once.
func (l *List[T]) waitForChange(ctx context.Context, ended <-chan error, clock <-chan time.Time) (touched bool, err error) {
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case err := <-ended:
		return false, err
	case <-clock:
		return false, nil
	case <-l.poked:
		return true, factory.Sleep(ctx, settleTime)
	}
}

// printChanges prints the list, and then a line for each change.
func (l *List[T]) printChanges(ctx context.Context, ended <-chan error) error {
	began := l.Now()
	list, err := l.Read(ctx, 0)
	if err != nil {
		return err
	}
	if err := l.printItems(list, true); err != nil {
		return err
	}

	footer := l.noteFooter("")
	rescan, stop := l.startRescans()
	defer stop()
	rest := l.restAfter(began)

	for l.Done == nil || !l.Done(list) {
		touched, err := l.waitForChange(ctx, ended, rescan)
		if err != nil {
			return err
		}

		keys, all := l.takeDirty()
		if l.Partial {
			keys = slices.DeleteFunc(keys, func(k string) bool { _, known := l.shown[k]; return !known })
			all = all || !touched && !l.Now().Before(rest)
		}

		switch {
		case all || l.Reread == nil:
			began := l.Now()
			if list, err = l.Read(ctx, 0); err == nil {
				err = l.printChanged(list, nil)
				footer, rest = l.noteFooter(footer), l.restAfter(began)
			}
		case len(keys) > 0:
			if list, err = l.Reread(ctx, keys); err == nil {
				err = l.printChanged(list, keys)
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
func (l *List[T]) startRescans() (<-chan time.Time, func()) {
	if !l.Partial || l.Rescan <= 0 {
		return nil, func() {}
	}

	t := time.NewTicker(l.Rescan)

	return t.C, t.Stop
}

// restAfter returns when the list may be read again, after a read that has just ended.
func (l *List[T]) restAfter(began time.Time) time.Time {
	return l.Now().Add(max(watchShare*l.Now().Sub(began), settleTime))
}

// noteFooter prints the footer if it differs from the last one, and returns it.
func (l *List[T]) noteFooter(last string) string {
	if l.Footer == nil {
		return ""
	}

	text := l.Footer()
	if text != last && text != "" {
		l.Note("%s", text)
	}

	return text
}

// printChanged prints the items that differ from what was printed. Of the keys in looked (nil: all), it reports
// those that are no longer in the list.
func (l *List[T]) printChanged(list []T, looked []string) error {
	there := make(map[string]bool, len(list))
	var news []T
	for _, item := range list {
		k := l.Key(item)
		there[k] = true
		if was, known := l.shown[k]; !known || was != l.fingerprint(item) {
			news = append(news, item)
		}
	}

	if looked == nil {
		for k := range l.shown {
			looked = append(looked, k)
		}
		slices.Sort(looked)
	}

	if err := l.printItems(news, false); err != nil {
		return err
	}

	for _, k := range looked {
		if _, known := l.shown[k]; known && !there[k] {
			delete(l.shown, k)
			if err := l.tellGone(k); err != nil {
				return err
			}
		}
	}

	return nil
}

// fingerprint returns a hash of an item.
func (l *List[T]) fingerprint(item T) uint64 {
	b, _ := output.CompactJSON(l.Comparable(item)) // it was read as JSON, so this cannot fail
	return maphash.Bytes(l.seed, b)
}

// printItems prints items. begin is true for the first output.
func (l *List[T]) printItems(list []T, begin bool) error {
	for _, item := range list {
		l.shown[l.Key(item)] = l.fingerprint(item)
	}

	switch {
	case l.ForPeople():
		g, err := l.SelectColumns(l.Table(list, l.Format == output.FormatWide || len(l.Columns) > 0))
		if err != nil {
			return err
		}
		return l.Print(l.formatRows(g, begin && !l.NoHeaders))
	case l.Format == output.FormatJSON:
		for _, item := range list {
			if err := l.EmitJSON(item); err != nil {
				return err
			}
		}

		return nil
	case l.Format == output.FormatYAML:
		for _, item := range list {
			err := l.Print("---\n")
			if err == nil {
				err = l.EmitYAML(1, func(int) any { return item })
			}

			if err != nil {
				return err
			}
		}

		return nil
	}

	return output.EmitList(&l.Factory.Printer, list, l.Name, nil)
}

// tellGone reports that an item has left the list.
func (l *List[T]) tellGone(key string) error {
	switch l.Format {
	case output.FormatJSON, output.FormatJSONL:
		return l.EmitLines(1, func(int) ([]byte, error) { return output.CompactJSON(l.Removed(key)) })

	case output.FormatYAML:
		if err := l.Print("---\n"); err != nil {
			return err
		}
		return l.EmitYAML(1, func(int) any { return l.Removed(key) })

	case output.FormatName:
		return nil
	}

	return l.Print(key + "  " + l.Paint(output.Dim, "no longer in the list") + "\n")
}

// formatRows formats lines of a table. Columns keep their widths as long as their contents fit.
func (l *List[T]) formatRows(g *output.Table, heads bool) string {
	all := g.Rows
	if heads {
		all = append([][]string{g.Headers}, all...)
	}

	for _, row := range append([][]string{g.Headers}, g.Rows...) {
		for i, cell := range row {
			if i == len(l.widths) {
				l.widths = append(l.widths, 0)
			}
			l.widths[i] = max(l.widths[i], text.StringWidthWithoutEscSequences(cell))
		}
	}

	var b strings.Builder

	for _, row := range all {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(text.Pad(cell, l.widths[i], ' ') + "  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}

	return b.String()
}

// redrawScreen keeps a terminal's screen up to date. It reads only as many items as fit on the screen, so that
// a read is cheap however long the list is. If a read takes long, it reads less often.
func (l *List[T]) redrawScreen(ctx context.Context, ended <-chan error) error {
	clock := time.NewTicker(watchClock)
	defer clock.Stop()

	const cleared = "\x1b[2J"
	if err := l.Print(cleared); err != nil {
		return err
	}

	var list []T
	var rest, next time.Time // no read before rest, and none of a list with Rescan before next
	stale := true
	for {
		now := l.Now()
		if (stale || l.Rescan > 0 && !now.Before(next)) && !now.Before(rest) {
			some, err := l.Read(ctx, max(output.TerminalHeight(l.Out)-3, 1))
			if err != nil && !canWait(err) {
				return err
			}

			if err == nil {
				list, stale = some, false
			}

			rest, next = l.restAfter(now), now.Add(l.Rescan)
		}

		if err := l.drawScreen(list); err != nil {
			return err
		}
		if l.Done != nil && l.Done(list) {
			return nil
		}

		touched, err := l.waitForChange(ctx, ended, clock.C)
		if err != nil {
			return err
		}

		if touched {
			keys, all := l.takeDirty()
			if l.Rescan > 0 && l.Reread != nil && !all {
				if list, err = l.rereadShown(ctx, list, keys); err != nil && !canWait(err) {
					return err
				}
				continue
			}

			stale = true
		}

		stale = stale || l.Moving != nil && l.Moving(list)
	}
}

// rereadShown reads those items of a list again that have changed. Items that no longer belong to it are dropped.
func (l *List[T]) rereadShown(ctx context.Context, list []T, changed []string) ([]T, error) {
	var keys []string
	for _, item := range list {
		if k := l.Key(item); slices.Contains(changed, k) {
			keys = append(keys, k)
		}
	}

	if len(keys) == 0 {
		return list, nil
	}

	found, err := l.Reread(ctx, keys)
	if err != nil {
		return list, err
	}

	current := make(map[string]T, len(found))
	for _, item := range found {
		current[l.Key(item)] = item
	}

	var kept []T
	for _, item := range list {
		k := l.Key(item)
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
func (l *List[T]) drawScreen(list []T) error {
	var drawn string
	if l.Page != nil && len(list) == 1 {
		drawn = l.Page(list)
	} else {
		g, err := l.SelectColumns(l.Table(list, l.Format == output.FormatWide || len(l.Columns) > 0))
		if err != nil {
			return err
		}

		if len(g.Rows) == 0 {
			drawn = g.Empty + "\n"
		} else {
			drawn = g.Render(&l.Factory.Printer)
		}
	}

	if l.Footer != nil {
		if text := l.Footer(); text != "" {
			drawn += text + "\n"
		}
	}

	var b strings.Builder
	b.WriteString("\x1b[H")

	room := max(output.TerminalHeight(l.Out)-1, 2)
	for line := range strings.Lines(drawn) {
		if room--; room < 0 {
			break
		}
		b.WriteString(strings.TrimSuffix(line, "\n") + "\x1b[K\n")
	}

	return l.Print(b.String() + "\x1b[J")
}

// Removed is printed for programs if an item has left the list, because it was deleted or no longer matches.
type Removed struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	ID        string `json:"id,omitempty"`
	Left      bool   `json:"left_list"`
}
