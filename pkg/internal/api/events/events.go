// Package events contains the API handlers for events: a page of past events, or a continuous stream of
// server-sent events.
//
// A stream ends when its caller disconnects or loses its access, or when the node stops. All readers of a node share one
// watch of etcd, except while they read events that are older than those in memory. The numbers of readers and of such
// watches are limited, on a node and for each subject there. Events that etcd has compacted are lost; an event of the kind
// gap reports that.
package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// Handlers serve events. They are safe for concurrent use.
type Handlers struct {
	Store *store.Store
	Hub   *eventlog.Hub // the events of this node's readers
	Node  string        // the name of this node
	// PageQuiet is how long a page waits without new events before it ends.
	PageQuiet time.Duration
	// CheckStream returns why the caller of a running request may no longer read the answer.
	CheckStream func(ctx context.Context, r *http.Request) error
	Ends        <-chan struct{} // closed when the node stops serving requests; may be nil
	Heartbeat   time.Duration   // the interval between signs of life of a stream
	Problems    httpapi.ProblemWriter

	readers httpapi.Slots // of callers that read events
	waiters httpapi.Slots // of callers that wait for a run
	watches httpapi.Slots // of those among them that have a watch of their own
}

// Figures are the numbers of readers, and of their events.
type Figures struct {
	eventlog.HubStats
	Readers, OwnWatches, Waiters int
}

// Figures returns the present figures.
func (h *Handlers) Figures() Figures {
	return Figures{HubStats: h.Hub.Stats(), Readers: h.readers.Held(), OwnWatches: h.watches.Held(), Waiters: h.waiters.Held()}
}

// Routes returns the operations on events.
func (h *Handlers) Routes() []*httpapi.Operation {
	const get = http.MethodGet

	return []*httpapi.Operation{
		{ID: "list-all-events", Method: get, Path: "/v1/events", Tag: "events", Summary: "Read or follow the events of the cluster",
			Description: eventsAbout, Status: 200, Streams: true, Answer: reflect.TypeFor[client.EventPage](),
			Events: reflect.TypeFor[task.Event](), Errors: []int{429}, Handler: httpapi.Query(h.listEvents)},
		{ID: "list-events", Verb: access.Read, Kind: access.Tasks, Method: get, Path: httpapi.InNamespace + "/events", Tag: "events", Summary: "Read or follow the events of a namespace",
			Description: eventsAbout, Status: 200, Streams: true, Answer: reflect.TypeFor[client.EventPage](),
			Events: reflect.TypeFor[task.Event](), Errors: []int{429}, Handler: httpapi.Query(h.listEvents)},
	}
}

const (
	// maxReaders is the maximum number of callers that stream or page through events on one node. One subject may have
	// a quarter of them.
	maxReaders = 256
	// maxWaiters is the maximum number of callers that wait for runs on one node. One subject may have a quarter of them.
	// Each examines all events, but only remembers whether one concerns its run.
	maxWaiters = 1024
	// maxOwnWatches is the maximum number of readers with a watch of their own, because the hub does not have the events
	// that they read. Each costs etcd a watch that also reads the value before each change. One subject may have a
	// quarter of them.
	maxOwnWatches = 32
	// PageQuiet is the default of Handlers.PageQuiet. A page of events ends when it contains everything up to
	// the revision at which it began. Other programs may use the same etcd, and their revisions contain no
	// events, so a page also ends after PageQuiet without an event, and after pageLimit in any case.
	PageQuiet = 2 * time.Second
	pageLimit = 10 * time.Second
)

const eventsAbout = "With Accept: text/event-stream, the answer is an unlimited stream of server-sent events, from now or from the position in after, since or " +
	"Last-Event-ID. Each message is one event, with the event's id. Comments, and messages with only an id, show that the stream is alive. Otherwise, the answer is a page " +
	"of the events until now: after=<last> is the next page. Events are available as long as etcd keeps their revisions; an event of the kind gap describes what is missing."

// eventsQuery are the parameters of a request for events.
type eventsQuery struct {
	Task  string    `query:"task" doc:"The name of a task."`
	After string    `query:"after" doc:"The id of an event, or last of a page: only later events. The header Last-Event-ID takes precedence."`
	Since task.Time `query:"since" format:"date-time" doc:"Only events from this time on, or from a few seconds before. Cannot be combined with after."`
	// Revisions costs less than Since, which searches etcd for the revision of a time.
	Revisions int64   `query:"revisions" minimum:"0" maximum:"100000" default:"0" doc:"Only events of this number of the latest revisions of etcd. Cannot be combined with after or since."`
	Kind      *string `query:"kind" doc:"Kinds of events, separated by commas. With a namespace, events of shards, nodes and the cluster are included only if you request them."`
	Tail      bool    `query:"tail" default:"false" doc:"On a page: instead of the first events, the last ones up to now, at most limit of them."`
	Limit     int     `query:"limit" minimum:"1" maximum:"5000" default:"500" doc:"Maximum number of items on a page."`
}

// Check rejects a request with several starting points.
func (q *eventsQuery) Check(given url.Values) error {
	if given.Has("after") && given.Has("since") {
		return task.Invalid(task.CodeBadValue, "since", "cannot be combined with after")
	}
	if given.Has("revisions") && (given.Has("after") || given.Has("since")) {
		return task.Invalid(task.CodeBadValue, "revisions", "cannot be combined with after or since")
	}

	return nil
}

// listEvents serves events, as a stream or as a page.
func (h *Handlers) listEvents(c *httpapi.Call, query eventsQuery) (httpapi.Answer, error) {
	q, f, err := h.eventQuery(c, query)
	if err != nil {
		return httpapi.Answer{}, err
	}

	if err := requireSomeEvents(c.Rights()); err != nil {
		return httpapi.Answer{}, err
	}

	release, err := h.readers.Acquire(c, maxReaders, "read events", h.Node)
	if err != nil {
		return httpapi.Answer{}, err
	}

	defer release()

	q.Brief = !wantsStream(c.Request)
	q.Wants = func(e *task.Event) bool { return f.Wants(e) && canSee(c.Rights(), e) }
	q.OwnWatch = func() (func(), error) {
		return h.watches.AcquireLater(c.Context(), maxOwnWatches, "read older events", h.Node)
	}

	if q.Brief {
		return h.pageOfEvents(c, q, query.Limit, query.Tail)
	}

	return httpapi.Answer{}, h.streamEvents(c, q)
}

// WatchRun begins to watch a run of a task, for a request that waits for it. changed receives a value after each change of the run
// since WatchRun was called; several changes can be one value. The caller must call stop.
//
// A run is read after WatchRun has returned: then no change is missed.
func (h *Handlers) WatchRun(c *httpapi.Call, namespace, name, run string) (changed <-chan struct{}, stop func(), err error) {
	release, err := h.waiters.Acquire(c, maxWaiters, "wait for runs", h.Node)
	if err != nil {
		return nil, nil, err
	}

	parent, _, _ := task.ParentOf(run) // the end of a part may only be in the record of its run
	q := eventlog.Query{
		// A task that is deleted has no runs.
		Wants: func(e *task.Event) bool {
			return e.Kind == task.EventGap || e.Namespace == namespace && e.Task == name && (e.Kind == task.EventTask || e.Run == run || parent != "" && e.Run == parent)
		},
		OwnWatch: func() (func(), error) {
			return h.watches.AcquireLater(c.Context(), maxOwnWatches, "read older events", h.Node)
		},
	}

	reader, err := h.openReader(c, q)
	if err != nil {
		release()
		return nil, nil, err
	}

	ctx, cancel := context.WithCancel(c.Context())
	signal, begun, over := wake.NewSignal(), make(chan struct{}), make(chan struct{})
	began := sync.OnceFunc(func() { close(begun) })

	callgroup.Start(func() {
		defer close(over)
		defer release()
		defer reader.Close()
		defer began()

		// If it fails, no further events arrive, and the request reads the run when its time is over.
		_ = reader.Follow(ctx, func(b eventlog.Batch) error {
			began()
			if len(b.Events) > 0 {
				signal.Send()
			}

			return nil
		})
	}, func(p *callgroup.Panic) {
		// Without events, the request reads the run when its time is over.
		h.Problems.LogFailure(c.Request, httpapi.Fail(http.StatusInternalServerError, client.CodeInternal, "panic").Because(p))
	})

	select {
	case <-begun:
	case <-ctx.Done():
	}

	return signal, func() { cancel(); <-over }, nil
}

// openReader adds a reader to the hub. It fails if the reader needs a watch of its own and none is free.
func (h *Handlers) openReader(c *httpapi.Call, q eventlog.Query) (*eventlog.Reader, error) {
	reader, err := h.Hub.Open(c.Context(), q)
	if err != nil {
		httpapi.SuggestRetry(c)
	}

	return reader, err
}

// requireSomeEvents refuses a caller that cannot see any event. A stream of such a caller would cost etcd a watch for nothing.
// A running stream ends when its caller can no longer see anything.
func requireSomeEvents(rights *httpapi.Rights) error {
	return rights.Check(func(v *authority.View) error {
		if rights.ReadsSomething() || rights.Allows(access.Need{Verb: access.Read, Kind: access.Nodes}) {
			return nil
		}

		return rights.Refusal(v, access.Need{Verb: access.Read, Kind: access.Cluster})
	})
}

// canSee reports whether the caller may see an event. It is asked for each event, so a right that ends takes effect at
// once. Events of nodes need read on nodes, those of shards and of the cluster read on the cluster. A gap contains only
// revisions, and a freeze of the whole cluster concerns every reader of a task.
func canSee(rights *httpapi.Rights, e *task.Event) bool {
	switch {
	case e.Kind == task.EventGap:
		return true
	case e.Namespace != "":
		return rights.CanRead(e.Namespace)
	case e.Action == task.ActionFrozen || e.Action == task.ActionUnfrozen:
		return rights.ReadsSomething()
	case e.Kind == task.EventNode:
		return rights.Allows(access.Need{Verb: access.Read, Kind: access.Nodes})
	}

	return rights.Allows(access.Need{Verb: access.Read, Kind: access.Cluster})
}

// wantsStream reports whether the request accepts server-sent events.
func wantsStream(r *http.Request) bool {
	return r.Method == http.MethodGet && slices.ContainsFunc(strings.Split(strings.Join(r.Header.Values("Accept"), ","), ","), func(part string) bool {
		kind, _, err := mime.ParseMediaType(part)
		return err == nil && kind == httpapi.TypeEventStream
	})
}

// eventQuery converts the parameters to a query of the store and a filter. A nil place in the query means that
// a stream begins now.
func (h *Handlers) eventQuery(c *httpapi.Call, query eventsQuery) (q eventlog.Query, f task.EventFilter, err error) {
	if c.Request.PathValue("ns") != "" {
		if f.Namespace, err = c.Namespace(); err != nil {
			return q, f, err
		}
	}

	if f.Task = query.Task; f.Task != "" {
		if f.Namespace == "" {
			return q, f, task.Invalid(task.CodeBadValue, "task", "%s: to read the events of a task, use /v1/namespaces/{ns}/events", task.Quote(f.Task))
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

	// Last-Event-ID takes precedence, because an EventSource sends it together with the original URL when it
	// reconnects.
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
	case query.Revisions > 0:
		there, err := h.Store.Present(c.Context())
		if err != nil {
			return q, f, err
		}
		q.After = &task.Place{}
		if from := there.Revision - query.Revisions; from > 0 {
			*q.After = task.After(from)
		}
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

// Reasons for which a page ends.
var (
	errPageFull = errors.New("the page is full")
	errQuiet    = errors.New("the stream was silent for too long")
)

// pageOfEvents answers with the events up to the current revision, at most limit of them: the first ones, or with tail the
// last ones. Last is where the next page continues.
func (h *Handlers) pageOfEvents(c *httpapi.Call, q eventlog.Query, limit int, tail bool) (httpapi.Answer, error) {
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

	reader, err := h.openReader(c, q)
	if err != nil {
		return httpapi.Answer{}, err
	}

	defer reader.Close()

	quiet := time.AfterFunc(pageLimit, func() { cancel(errQuiet) })
	defer quiet.Stop()

	over := time.AfterFunc(pageLimit, func() { cancel(errPageFull) })
	defer over.Stop()

	err = reader.Follow(ctx, func(b eventlog.Batch) error {
		quiet.Reset(h.PageQuiet)

		for _, e := range b.Events {
			page.Items = append(page.Items, e.Event)
		}

		// The place up to which events were delivered moves even without events, so that the next page does not
		// read the same revisions again.
		page.Last = b.Told.String()
		if tail && len(page.Items) > 2*limit {
			keepLast(&page, limit)
		}
		if !tail && len(page.Items) >= limit {
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

	if tail {
		keepLast(&page, limit)
	}

	switch {
	case errors.Is(err, errPageFull):
		page.More = true
	case !errors.Is(err, errQuiet):
		return httpapi.Answer{}, err
	}

	return httpapi.Answer{Status: http.StatusOK, Body: page}, nil
}

// keepLast drops all but the last events of a page.
func keepLast(page *client.EventPage, limit int) {
	if n := len(page.Items) - limit; n > 0 {
		page.Items, page.Earlier = slices.Delete(page.Items, 0, n), true
	}
}

// streamEvents sends events until the caller disconnects, its token becomes invalid, or the node stops.
func (h *Handlers) streamEvents(c *httpapi.Call, q eventlog.Query) error {
	reader, err := h.openReader(c, q)
	if err != nil {
		return err
	}

	defer reader.Close()

	ctx, cancel := context.WithCancel(c.Context())
	out := eventStream{Call: c}
	batches, followed := make(chan numberedBatch), make(chan error, 1)
	callgroup.Start(func() {
		followed <- reader.Follow(ctx, func(b eventlog.Batch) error { return out.passBatch(ctx, b, batches) })
	}, func(p *callgroup.Panic) { followed <- p })

	over := false
	defer func() {
		cancel()
		if !over {
			<-followed
		}
	}()

	out.writeHead(q.After)
	beat := time.NewTicker(h.Heartbeat)
	defer beat.Stop()

	for out.err == nil {
		select {
		case b := <-batches:
			out.sendBatch(b)
		case <-beat.C:
			if h.CheckStream(ctx, c.Request) != nil {
				return nil // the token is no longer valid
			}
			out.sendHeartbeat()
		case <-h.Ends:
			out.writeComment("the node is stopping")
			return nil
		case <-ctx.Done():
			return nil
		case err := <-followed: // Follow returns only if the query is impossible: it retries all other errors
			over = true
			if p, ok := errors.AsType[*callgroup.Panic](err); ok {
				panic(p) // it ends the request like a panic of this goroutine
			}

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
	err  error      // the first error of a write; the stream ends then
	sent task.Place // the place that the client knows from the last id

	passed int // the number of batches that passBatch has had

	mu   sync.Mutex
	told task.Place // all events up to here have been sent, or are not wanted
	of   int        // the number of the batch from which told is
}

// numberedBatch is a batch and its number, from 1.
type numberedBatch struct {
	eventlog.Batch
	number int
}

// passBatch passes a batch to the goroutine that sends it. A batch without events only moves the place that the next
// heartbeat sends, except for the first one. So a stream that wants few events costs little.
func (s *eventStream) passBatch(ctx context.Context, b eventlog.Batch, batches chan<- numberedBatch) error {
	s.passed++

	if s.passed > 1 && len(b.Events) == 0 {
		s.setTold(b.Told, s.passed)
		return nil
	}

	select {
	case batches <- numberedBatch{b, s.passed}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// setTold records that all events of a batch have been sent, or are not wanted, unless that is known of a later batch. The
// place may go back, if etcd was restored from an older snapshot.
func (s *eventStream) setTold(place task.Place, batch int) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if batch > s.of {
		s.told, s.of = place, batch
	}
}

func (s *eventStream) toldPlace() task.Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told
}

// writeHead sends the header and the starting point.
func (s *eventStream) writeHead(after *task.Place) {
	h := s.Writer.Header()
	h.Set("Content-Type", httpapi.TypeEventStream)
	h.Set("X-Accel-Buffering", "no") // proxies would buffer the events
	var b bytes.Buffer
	b.WriteString("retry: 2000\n")

	if after != nil && *after != (task.Place{}) {
		s.sent = *after
		fmt.Fprintf(&b, "id: %s\n", after)
	}

	b.WriteByte('\n')
	s.writeBytes(b.Bytes())
}

// sendBatch sends a batch. It sends the starting point immediately, so that a caller that is disconnected before the
// first event continues from there.
func (s *eventStream) sendBatch(batch numberedBatch) {
	s.setTold(batch.Told, batch.number)

	if len(batch.Events) == 0 {
		if s.sent == (task.Place{}) {
			s.sendHeartbeat()
		}
		return
	}

	var b bytes.Buffer

	for _, e := range batch.Events {
		text, err := e.JSON()
		if err != nil {
			s.err = err
			return
		}

		b.WriteString("id: ")
		b.WriteString(e.ID)
		b.WriteString("\ndata: ")
		b.Write(text)
		b.WriteString("\n\n")
	}

	s.sent = batch.Events[len(batch.Events)-1].Place
	s.writeBytes(b.Bytes())
}

// sendHeartbeat sends a sign of life. If the stream has advanced without events, it contains the new place.
func (s *eventStream) sendHeartbeat() {
	told := s.toldPlace()
	if !s.sent.Before(told) {
		s.writeComment("")
		return
	}

	s.sent = told
	s.writeBytes(fmt.Appendf(nil, "id: %s\n\n", told))
}

// writeComment sends a comment, which clients ignore.
func (s *eventStream) writeComment(text string) { s.writeBytes([]byte(": " + text + "\n\n")) }

// writeBytes sends bytes and flushes them.
func (s *eventStream) writeBytes(b []byte) {
	w := http.NewResponseController(s.Writer)

	if _, err := s.Writer.Write(b); err != nil {
		s.err = err
		return
	}

	s.err = w.Flush()
}
