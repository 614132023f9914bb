package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// EventsService reads and streams the events of the cluster.
type EventsService struct{ conn *connection }

// EventPage is a page of events, the oldest first.
type EventPage struct {
	Items []task.Event `json:"items" doc:"The events, the oldest first."`
	Last  string       `json:"last" doc:"The position of the last event of this page; use after=<last> for the next page."`
	More  bool         `json:"more" doc:"Whether there are more events already. If not, the next page has the events from now on."`
	// Earlier is set only with Tail.
	Earlier bool `json:"earlier,omitempty" doc:"With tail: there are earlier events, which were left out."`
}

// EventOptions select events. Events of the kind gap, which report lost events, are always included.
type EventOptions struct {
	Namespace string   // "" means all namespaces, and events without a namespace
	Task      string   // requires Namespace; "" means all tasks
	Kinds     []string // values of task.EventKinds; empty means all kinds
	// After is the id of an event or EventPage.Last; only later events are returned. Since is a time; events
	// from up to a few seconds before it on are returned. Revisions is a number of revisions of etcd: only events of
	// the last ones are returned, which costs less than Since. At most one of them may be set.
	After     string
	Since     time.Time
	Revisions int64
	// Tail is only for ListPage: a page has the last events up to now instead of the first ones.
	Tail bool
	// Lost, if set, is called with the error when a stream has ended and Follow reconnects, and with nil when
	// the connection is back. If the first answer afterwards is a refusal, which ends Follow, it is not called: the
	// refusal is the reason.
	Lost func(error)
	// Begun, if set, is called once, before the first event, when the stream has begun. All events from then on
	// are delivered.
	Begun func()
}

// newCall returns the call for these options.
func (o EventOptions) newCall() (call, error) {
	path, err := namespacePath(o.Namespace, "/events")
	k := call{method: http.MethodGet, path: path, query: url.Values{}, header: http.Header{}}
	setIfNotEmpty(k.query, "task", o.Task)
	setIfNotEmpty(k.query, "kind", strings.Join(o.Kinds, ","))
	setIfNotEmpty(k.query, "after", o.After)
	setTimes(k.query, map[string]time.Time{"since": o.Since})
	if o.Revisions > 0 {
		k.query.Set("revisions", strconv.FormatInt(o.Revisions, 10))
	}

	return k, err
}

// ListPage returns a page of past events, at most limit of them (0: the server's default). To read the next
// page, set o.After to EventPage.Last.
func (s *EventsService) ListPage(ctx context.Context, o EventOptions, limit int) (EventPage, error) {
	var page EventPage
	k, err := o.newCall()
	if err != nil {
		return page, err
	}

	if limit > 0 {
		k.query.Set("limit", strconv.Itoa(limit))
	}
	if o.Tail {
		k.query.Set("tail", "true")
	}

	err = s.conn.doCall(ctx, k, &page)

	return page, err
}

// All yields the events up to now, the oldest first, from the oldest that is kept or from where o starts. It
// reads each page when it is needed. An error ends the iteration.
func (s *EventsService) All(ctx context.Context, o EventOptions) iter.Seq2[task.Event, error] {
	return func(yield func(task.Event, error) bool) {
		for more := true; more; {
			page, err := s.ListPage(ctx, o, 0)
			if err != nil {
				yield(task.Event{}, err)
				return
			}

			for _, e := range page.Items {
				if !yield(e, nil) {
					return
				}
			}

			o.After, o.Since, more = page.Last, time.Time{}, page.More
		}
	}
}

const (
	// quietLimit is how long a stream may be silent: three times the interval at which the server sends signs of
	// life.
	// Follow waits from firstWait to maxWait before it reconnects.
	quietLimit = 45 * time.Second
	firstWait  = 200 * time.Millisecond
	maxWait    = 5 * time.Second
	// maxMessage is the maximum length of a line of a stream in bytes.
	maxMessage = 4 << 20
)

// Follow yields events as they happen, from now on or from where o starts. It yields each event once and in
// order, even if the connection is lost several times.
//
// Follow ends with the error of ctx, or with the error of a server that refuses the call. If the server cannot
// be reached, Follow ends only before the first connection. Later it calls o.Lost and reconnects until it
// succeeds.
func (s *EventsService) Follow(ctx context.Context, o EventOptions) iter.Seq2[task.Event, error] {
	return func(yield func(task.Event, error) bool) {
		stream := eventStream{conn: s.conn, o: o, yield: yield}
		for wait := firstWait; ; wait = min(2*wait, maxWait) {
			heard, err := stream.readConnection(ctx)
			var refused *Error

			// An answer with an error status, other than "unavailable", would be the same after a reconnect.
			final := errors.As(err, &refused) && refused.Status != 0 && !errors.Is(err, task.ErrUnavailable)
			switch {
			case errors.Is(err, errStopped):
				return
			case ctx.Err() != nil:
				yield(task.Event{}, ctx.Err())
				return
			case final, !stream.begun:
				yield(task.Event{}, err)
				return
			}

			if heard {
				wait = firstWait
			}

			// A stream that has begun ends like this also if the server has ended it, because its caller may no longer
			// read it. The answer to the next request shows which.
			if stream.cut == nil && !stream.lost {
				stream.cut = err
			} else {
				stream.reportLoss(err)
			}

			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
		}
	}
}

// errStopped means that the caller of Follow has stopped the iteration.
var errStopped = errors.New("stopped")

// eventStream reads server-sent events over a sequence of connections.
type eventStream struct {
	conn  *connection
	o     EventOptions
	yield func(task.Event, error) bool
	begun bool // the server has answered at least once
	lost  bool // the connection was lost, and Lost was called
	// cut is why the connection was lost, until Lost is called.
	cut error
}

// reportLoss calls Lost because the connection was lost, or because of err if that has been reported.
func (s *eventStream) reportLoss(err error) {
	if s.cut != nil {
		err = s.cut
	}
	s.cut, s.lost = nil, true

	if s.o.Lost != nil {
		s.o.Lost(err)
	}
}

// readConnection reads one connection until it ends. received reports whether anything arrived.
func (s *eventStream) readConnection(ctx context.Context) (received bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	silence := fmt.Errorf("the stream of events is silent: %w", context.DeadlineExceeded)
	quiet := time.AfterFunc(s.conn.timeout, func() { cancel(silence) })
	defer quiet.Stop()

	k, err := s.o.newCall()
	if err != nil {
		return false, err
	}

	// The limit for the beginning of the answer is Config.Timeout; quietLimit applies after that.
	k.stream = true
	k.header.Set("Accept", "text/event-stream")

	res, err := s.conn.sendCall(ctx, k)
	if err != nil {
		return false, err
	}

	defer res.Body.Close()

	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != "text/event-stream" {
		return false, s.conn.notCarillon(res)
	}

	s.begun = true
	if s.cut != nil {
		s.reportLoss(nil)
	}
	if s.lost && s.o.Lost != nil {
		s.o.Lost(nil)
	}

	s.lost = false
	in := bufio.NewScanner(res.Body)
	in.Buffer(make([]byte, 64<<10), maxMessage)

	var m message
	for quiet.Reset(quietLimit); in.Scan(); quiet.Reset(quietLimit) {
		received = true

		if m.addLine(in.Text()) {
			continue
		}
		if err := s.yieldMessage(&m); err != nil {
			return true, err
		}

		m = message{}
	}

	if err = in.Err(); err == nil {
		err = io.ErrUnexpectedEOF
	}

	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}

	return received, s.conn.errorWithoutAnswer(err, false)
}

// message is one server-sent message while its lines arrive.
type message struct{ id, data string }

// addLine adds a line. It returns false for the empty line that ends the message.
func (m *message) addLine(text string) bool {
	name, value, _ := strings.Cut(text, ":")
	value = strings.TrimPrefix(value, " ")

	switch {
	case text == "":
		return false
	case name == "id":
		m.id = value
	case name == "data" && m.data != "":
		m.data += "\n" + value
	case name == "data":
		m.data = value
	}

	return true
}

// yieldMessage yields the event in a message, if there is one. The next connection continues after the id of
// the message.
func (s *eventStream) yieldMessage(m *message) error {
	if m.id != "" && s.o.Begun != nil {
		s.o.Begun()
		s.o.Begun = nil
	}

	if m.data != "" {
		var e task.Event
		if err := json.Unmarshal([]byte(m.data), &e); err != nil {
			return &Error{Status: http.StatusOK, Code: CodeNotCarillon, Message: fmt.Sprintf("%s sent an invalid event: %v", s.conn.servers.preferred().base, err)}
		}
		if !s.yield(e, nil) {
			return errStopped
		}
	}

	if m.id != "" {
		s.o.After, s.o.Since = m.id, time.Time{}
	}

	return nil
}
