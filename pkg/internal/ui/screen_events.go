package ui

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// shownEvents is the number of events that the page shows, and keptEvents the number that is kept, because some of them
	// become older than the page goes back.
	shownEvents = 50
	keptEvents  = 2 * shownEvents
	// fewRevisions is how many revisions the page reads at first. In a busy cluster, they have enough events.
	fewRevisions = 250
	// usualSince is how far the page looks back.
	usualSince = "15m"
)

// eventsScreen shows the latest events, as "carillon events" does.
func eventsScreen() Screen {
	return Screen{
		Name: "events", Pattern: "/ui/events", Nav: "events",
		Title:   func(*View) string { return "Events" },
		Load:    loadEvents,
		Command: eventsCommand,
		Parts:   []Part{{Name: "note"}, {Name: "rows"}},
		Every:   3 * time.Second, // each rendering reads revisions from etcd
	}
}

// eventsPage is what the screen shows.
type eventsPage struct {
	Kind          string // the kind that is shown, or several with commas; "": all
	Namespace     string // "": all
	Task, Since   string
	AllKinds      []string
	Spaces, Spans []string
	Events        []eventRow // the newest first
	Back          string     // "in the last 15m"
	Note          string
	Oldest        bool // nothing is left out

	latest latestEvents // what the list was made of
}

// eventRow is an event.
type eventRow struct {
	task.Event
	Text string
	Gap  bool
}

// eventSpans are the times to choose from.
var eventSpans = []string{"1m", "15m", "1h", "6h", "24h"}

func loadEvents(ctx context.Context, r *Request) (any, error) {
	p := eventsPage{
		Kind: r.Query.Get("kind"), Namespace: r.Query.Get("ns"), Task: strings.TrimSpace(r.Query.Get("task")), Since: cmp.Or(strings.TrimSpace(r.Query.Get("since")), usualSince),
		Back: "in the time that was asked for", AllKinds: task.EventKinds(), Spaces: r.Namespaces(), Spans: eventSpans,
	}

	o := client.EventOptions{Namespace: p.Namespace, Task: p.Task}
	if p.Kind != "" {
		o.Kinds = strings.Split(p.Kind, ",")
	}
	for _, k := range o.Kinds {
		if !slices.Contains(p.AllKinds, k) {
			return p, task.NoneOf(task.CodeBadValue, "kind", k, p.AllKinds...)
		}
	}
	if p.Task != "" && p.Namespace == "" {
		return p, task.Invalid(task.CodeRequired, "ns", "choose the namespace of the task")
	}
	span, err := eventSpan(p.Since, r)
	if err != nil {
		return p, err
	}

	if before, ok := r.previous.(eventsPage); ok && before.latest.last != "" {
		p.latest, err = before.latest.continued(ctx, r, o, span)
	} else {
		p.latest, err = readLatestEvents(ctx, r, o, span)
	}
	if err != nil && problemOf(err).Field == "" {
		return nil, err
	}
	if err != nil {
		return p, err
	}

	events, cut := p.latest.events, p.latest.cut
	p.Back = sinceText(p.Since)
	p.Note, p.Oldest = eventsNote(p.Since, len(events), cut), !cut
	for _, e := range slices.Backward(events[max(len(events)-shownEvents, 0):]) {
		p.Events = append(p.Events, eventRow{Event: e, Text: wording.EventText(e), Gap: e.Kind == task.EventGap})
	}

	return p, nil
}

// eventSpan reads how far to look back: a duration, or a time, as in the CLI.
func eventSpan(since string, r *Request) (time.Duration, error) {
	at, err := parseSince(r, since)

	return max(r.Now.Sub(at), time.Second), err
}

// latestEvents are events of the last span, the oldest first.
type latestEvents struct {
	events []task.Event
	cut    bool   // there are older ones in the span
	last   string // the place up to which they were read; "": they were not read to the end
}

// readLatestEvents reads events of the last span. The API reads all events of the time that it is asked for, and answers with
// the last ones. So it is asked first for few revisions, and for a longer time only if these have too few events.
func readLatestEvents(ctx context.Context, r *Request, o client.EventOptions, span time.Duration) (latestEvents, error) {
	o.Revisions, o.After = fewRevisions, ""
	page, err := readEvents(ctx, r, o)
	if err != nil {
		return latestEvents{}, err
	}

	// If the first event is older than the span, none of the span is missing.
	events := eventsSince(page.Items, r.Now.Add(-span))
	if whole := !page.Earlier && len(events) < len(page.Items); !page.More && (whole || len(events) >= shownEvents) {
		return latestEvents{events, !whole, page.Last}, nil
	}

	l := latestEvents{events: events}
	o.Revisions = 0
	for _, window := range []time.Duration{time.Minute, span} {
		window = min(window, span)
		o.Since = r.Now.Add(-window)

		page, err := readEvents(ctx, r, o)
		if err != nil {
			return latestEvents{}, err
		}

		if page.More { // too many to read them all: those of the shorter time are the latest
			if len(l.events) == 0 {
				l.events = page.Items
			}
			l.cut = true

			return l, nil
		}

		l = latestEvents{page.Items, window < span || page.Earlier, page.Last}
		if window == span || len(l.events) >= shownEvents {
			break
		}
	}

	return l, nil
}

// eventsSince returns the events from a time on.
func eventsSince(events []task.Event, from time.Time) []task.Event {
	first := slices.IndexFunc(events, func(e task.Event) bool { return !e.Time.Before(from) })
	if first < 0 {
		return nil
	}

	return events[first:]
}

// continued returns the latest events a little later: those that are still in the span, and what has come since. So a page
// that somebody watches asks only for what is new.
func (l latestEvents) continued(ctx context.Context, r *Request, o client.EventOptions, span time.Duration) (latestEvents, error) {
	o.After = l.last
	page, err := readEvents(ctx, r, o)
	if err != nil {
		return latestEvents{}, err
	}
	// There are too many to read them all, or the events have started over.
	read := page.Items
	if page.More || slices.ContainsFunc(read, func(e task.Event) bool { return e.Kind == task.EventGap }) {
		return readLatestEvents(ctx, r, o, span)
	}

	if page.Earlier {
		return latestEvents{read, true, page.Last}, nil
	}

	events := eventsSince(slices.Concat(l.events, read), r.Now.Add(-span))
	if l.cut && len(events) < shownEvents {
		return readLatestEvents(ctx, r, o, span) // what was left out may be in the span
	}

	return newestOf(latestEvents{events, l.cut, page.Last}), nil
}

// newestOf leaves out events that the page does not need, so that it keeps little memory.
func newestOf(l latestEvents) latestEvents {
	if n := len(l.events) - keptEvents; n > 0 {
		l.events, l.cut = slices.Clone(l.events[n:]), true
	}
	return l
}

// readEvents reads the last events up to now.
func readEvents(ctx context.Context, r *Request, o client.EventOptions) (client.EventPage, error) {
	o.Tail = true
	return r.API.Events.ListPage(ctx, o, keptEvents)
}

// sinceText says how far the list goes back: "in the last 15m", "since 2026-11-20".
func sinceText(since string) string {
	if _, err := task.ParseDuration("since", since); err == nil {
		return "in the last " + since
	}
	return "since " + since
}

// eventsNote says what the list is.
func eventsNote(since string, n int, cut bool) string {
	switch {
	case cut || n > shownEvents:
		return fmt.Sprintf("The latest %d events; older ones are left out. Choose fewer with the filters, or read all in a terminal.", min(n, shownEvents))
	case n == 0:
		return ""
	}
	return wording.Plural(int64(n), "event") + " " + sinceText(since)
}

// eventsCommand returns the command line of the list.
func eventsCommand(v *View) []string {
	words := []string{"carillon", "events", "--since", cmp.Or(v.Query.Get("since"), usualSince)}
	if ns := v.Query.Get("ns"); ns != "" {
		words = append(words, "-n", ns)
	} else {
		words = append(words, "-A")
	}
	if kind := v.Query.Get("kind"); kind != "" {
		words = append(words, "--kind", kind)
	}
	if name := v.Query.Get("task"); name != "" {
		words = append(words, "--task", name)
	}

	return words
}
