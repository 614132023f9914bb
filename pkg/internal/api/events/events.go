// Package events has the API's handlers of events: a page of what has happened, or a stream of
// server-sent events that goes on.
//
// A stream ends when its caller goes, is not let in any more, or the node stops; how many there
// are at a node is bounded. Events that etcd has compacted are gone, which an event says.
package events

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// maxStreams is how many callers follow events at one node, or read pages of
	// them: each costs etcd a watch, which reads what was there before each change.
	maxStreams = 32
	// A page ends when everything is told that had happened when it began; when
	// nothing was told for PageQuiet (Config.PageQuiet), which an etcd does that
	// others use; and at last after pageLimit.
	PageQuiet = 2 * time.Second
	pageLimit = 10 * time.Second
)

const eventsAbout = "With Accept: text/event-stream it is a stream of server-sent events that goes on: from now, or from where after, since or " +
	"Last-Event-ID say. Each message is one event, its id the event's; an id alone, and a comment, are signs of life. Otherwise it is a page, " +
	"which ends with what has happened by now: after=<last> is the next one. Events last as long as etcd keeps its revisions; an event of the kind gap says what is missing."

// eventsQuery are the parameters of events.
type eventsQuery struct {
	Task  string    `query:"task" doc:"The name of a task."`
	After string    `query:"after" doc:"The id of an event, or last of a page: only later events. The header Last-Event-ID takes precedence."`
	Since task.Time `query:"since" format:"date-time" doc:"Only events from this time on, or from a few seconds before. Excludes after."`
	Kind  *string   `query:"kind" doc:"Kinds of events, separated by commas. With a namespace, events of shards, nodes and the cluster are included only if you request them."`
	Limit int       `query:"limit" minimum:"1" maximum:"5000" default:"500" doc:"Maximum number of items on a page."`
}

// Check refuses two places to begin at.
func (q *eventsQuery) Check(given url.Values) error {
	if given.Has("after") && given.Has("since") {
		return task.Invalid(task.CodeBadValue, "since", "not together with after")
	}
	return nil
}

// listEvents serves events, as a stream or as a page.
func (h *Handlers) listEvents(c *httpapi.Call, query eventsQuery) (httpapi.Answer, error) {
	q, f, err := h.eventQuery(c, query)
	if err != nil {
		return httpapi.Answer{}, err
	}

	if h.streaming.Add(1) > maxStreams {
		h.streaming.Add(-1)
		c.Writer.Header().Set("Retry-After", "2")
		return httpapi.Answer{}, httpapi.Fail(http.StatusTooManyRequests, client.CodeBusy, "%d callers follow events at node %s already", maxStreams, h.Node).
			WithHint("try again, or ask another node")
	}

	defer h.streaming.Add(-1)

	q.Wants = f.Wants

	if wantsStream(c.Request) {
		return httpapi.Answer{}, h.streamEvents(c, q)
	}

	return h.pageOfEvents(c, q, query.Limit)
}

func wantsStream(r *http.Request) bool {
	return r.Method == http.MethodGet && slices.ContainsFunc(strings.Split(strings.Join(r.Header.Values("Accept"), ","), ","), func(part string) bool {
		kind, _, err := mime.ParseMediaType(part)
		return err == nil && kind == httpapi.TypeEventStream
	})
}

// eventQuery reads which events are asked for.
func (h *Handlers) eventQuery(c *httpapi.Call, query eventsQuery) (q store.EventQuery, f task.EventFilter, err error) {
	if c.Request.PathValue("ns") != "" {
		if f.Namespace, err = c.Namespace(); err != nil {
			return q, f, err
		}
	}

	if f.Task = query.Task; f.Task != "" {
		if f.Namespace == "" {
			return q, f, task.Invalid(task.CodeBadValue, "task", "%s: the events of a task are those of /v1/namespaces/{ns}/events", task.Quote(f.Task))
		}
		if err := task.CheckName("task", f.Task); err != nil {
			return q, f, err
		}
	}

	if query.Kind != nil {
		f.Kinds = strings.Split(*query.Kind, ",")
		for _, k := range f.Kinds {
			if !slices.Contains(task.EventKinds(), k) {
				return q, f, task.NoneOf(task.CodeBadValue, "kind", k, task.EventKinds()...)
			}
		}
	}

	after, field := query.After, "after"
	if id := c.Request.Header.Get("Last-Event-ID"); id != "" {
		after, field = id, "Last-Event-ID"
	}

	switch {
	case after != "":
		p, err := task.ParsePlace(after)
		if err != nil {
			return q, f, task.Invalid(task.CodeBadValue, field, "%s is not the id of an event, such as 1234 or 1234.2", task.Quote(after))
		}
		q.After = &p
	case !query.Since.IsZero():
		p, err := h.Store.PlaceOf(c.Context(), query.Since.Time)
		if err != nil {
			return q, f, err
		}
		q.After = &p
	case !wantsStream(c.Request):
		q.After = &task.Place{}
	}

	return q, f, err
}

var (
	errPageFull = errors.New("the page is full")
	errQuiet    = errors.New("the stream was silent for too long")
)

// pageOfEvents answers with events up to now, at most limit of them.
func (h *Handlers) pageOfEvents(c *httpapi.Call, q store.EventQuery, limit int) (httpapi.Answer, error) {
	ctx, cancel := context.WithCancelCause(c.Context())
	defer cancel(nil)

	there, err := h.Store.Present(ctx)
	if err != nil {
		return httpapi.Answer{}, err
	}

	page := client.EventPage{Items: []task.Event{}, Last: q.After.String()}

	if *q.After == task.After(there.Revision) {
		return httpapi.Answer{Status: http.StatusOK, Body: page}, nil
	}

	quiet := time.AfterFunc(pageLimit, func() { cancel(errQuiet) })
	defer quiet.Stop()

	over := time.AfterFunc(pageLimit, func() { cancel(errPageFull) })
	defer over.Stop()

	err = h.Store.FollowEvents(ctx, q, func(b store.EventBatch) error {
		quiet.Reset(h.PageQuiet)
		page.Items, page.Last = append(page.Items, b.Events...), b.Told.String()
		if len(page.Items) >= limit {
			if len(page.Items) > limit {
				page.Items = page.Items[:limit]
				page.Last = page.Items[limit-1].ID
			}
			return errPageFull
		}

		if b.Told.Revision >= there.Revision {
			return errQuiet
		}

		return nil
	})

	if cause := context.Cause(ctx); cause != nil && c.Context().Err() == nil {
		err = cause
	}

	switch {
	case errors.Is(err, errPageFull):
		page.More = true
	case !errors.Is(err, errQuiet):
		return httpapi.Answer{}, err
	}

	return httpapi.Answer{Status: http.StatusOK, Body: page}, nil
}

// streamEvents sends events until the caller goes, its token ends, or the node
// stops.
func (h *Handlers) streamEvents(c *httpapi.Call, q store.EventQuery) error {
	ctx, cancel := context.WithCancel(c.Context())
	batches, followed := make(chan store.EventBatch), make(chan error, 1)
	go func() {
		followed <- h.Store.FollowEvents(ctx, q, func(b store.EventBatch) error {
			select {
			case batches <- b:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()

	over := false
	defer func() {
		cancel()
		if !over {
			<-followed
		}
	}()

	out := eventStream{Call: c}
	out.begin(q.After)
	beat := time.NewTicker(h.Heartbeat)
	defer beat.Stop()

	for out.err == nil {
		select {
		case b := <-batches:
			out.tell(b)
		case <-beat.C:
			if h.Refused(ctx, c.Request) {
				return nil // the token is none any more
			}
			out.beat()
		case <-h.Ends:
			out.comment("the node stops")
			return nil
		case <-ctx.Done():
			return nil
		case err := <-followed: // of what it cannot be: it tries for as long as ctx lasts
			over = true
			f := httpapi.AsFailure(err)
			h.Problems.LogFailure(c.Request, f)

			return nil
		}
	}

	return nil
}

// eventStream writes server-sent events.
type eventStream struct {
	*httpapi.Call
	err  error
	told task.Place // all up to here is told
	sent task.Place // as an id
}

func (o *eventStream) begin(after *task.Place) {
	h := o.Writer.Header()
	h.Set("Content-Type", httpapi.TypeEventStream)
	h.Set("X-Accel-Buffering", "no") // proxies would hold them back
	var b bytes.Buffer
	b.WriteString("retry: 2000\n")

	if after != nil && *after != (task.Place{}) {
		o.told, o.sent = *after, *after
		fmt.Fprintf(&b, "id: %s\n", after)
	}

	b.WriteByte('\n')
	o.write(b.Bytes())
}

// tell sends a batch. Where it begins is told at once: a caller that is cut off
// before the first event goes on from there.
func (o *eventStream) tell(batch store.EventBatch) {
	o.told = batch.Told

	if len(batch.Events) == 0 {
		if o.sent == (task.Place{}) {
			o.beat()
		}
		return
	}

	var b bytes.Buffer

	for i := range batch.Events {
		e := &batch.Events[i]
		text, err := json.Marshal(e)
		if err != nil {
			o.err = err
			return
		}

		fmt.Fprintf(&b, "id: %s\ndata: %s\n\n", e.ID, text)
	}

	last, _ := task.ParsePlace(batch.Events[len(batch.Events)-1].ID)
	o.sent = last
	o.write(b.Bytes())
}

// beat is a sign of life: how far all is told, if that is news.
func (o *eventStream) beat() {
	if !o.sent.Before(o.told) {
		o.comment("")
		return
	}

	o.sent = o.told
	o.write(fmt.Appendf(nil, "id: %s\n\n", o.told))
}

func (o *eventStream) comment(text string) { o.write([]byte(": " + text + "\n\n")) }

func (o *eventStream) write(b []byte) {
	w := http.NewResponseController(o.Writer)

	if _, err := o.Writer.Write(b); err != nil {
		o.err = err
		return
	}

	o.err = w.Flush()
}
