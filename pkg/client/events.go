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

// EventsService reads and follows the events of the cluster.
type EventsService struct{ conn *connection }

// EventPage is a page of events, the oldest first.
type EventPage struct {
	Items []task.Event `json:"items"`
	Last  string       `json:"last" doc:"The position of the last event of this page; use after=<last> for the next page."`
	More  bool         `json:"more" doc:"Whether there are more events already. If not, the next page has the events from now on."`
}

// EventOptions say which events are wanted. A gap is always told.
type EventOptions struct {
	Namespace string   // "" is all, and what belongs to none
	Task      string   // needs a Namespace; "" is all
	Kinds     []string // of task.EventKinds; none is all
	// After is the id of an event, or EventPage.Last: only what came after it. Since
	// is a time, from a few seconds before which on events are wanted. At most one of
	// them is set.
	After string
	Since time.Time
	// Lost, if set, hears that a stream has ended and is sought again; nil: it is back.
	Lost func(error)
	// Begun, if set, hears once, before the first event, that a stream has begun: all
	// that happens from then on is told.
	Begun func()
}

func (o EventOptions) newCall() (call, error) {
	path, err := namespacePath(o.Namespace, "/events")
	k := call{method: http.MethodGet, path: path, query: url.Values{}, header: http.Header{}}
	setIfNotEmpty(k.query, "task", o.Task)
	setIfNotEmpty(k.query, "kind", strings.Join(o.Kinds, ","))
	setIfNotEmpty(k.query, "after", o.After)
	setTimes(k.query, map[string]time.Time{"since": o.Since})

	return k, err
}

// ListPage reads a page of events that have happened, at most limit of them (0: the
// server's default). EventPage.Last as o.After reads the next page.
func (s *EventsService) ListPage(ctx context.Context, o EventOptions, limit int) (EventPage, error) {
	var page EventPage
	k, err := o.newCall()
	if err != nil {
		return page, err
	}

	if limit > 0 {
		k.query.Set("limit", strconv.Itoa(limit))
	}

	err = s.conn.doCall(ctx, k, &page)

	return page, err
}

// All yields the events that have happened up to now, the oldest first: from the oldest
// that is kept, or from where o says. It reads each page when it is needed. An error
// ends it.
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
	// quietLimit is how long a stream may say nothing: three times as long as a
	// server does.
	quietLimit = 45 * time.Second
	firstWait  = 200 * time.Millisecond
	mostWait   = 5 * time.Second
	// maxMessage is how long a line of a stream may be.
	maxMessage = 4 << 20
)

// Follow yields events as they happen, from now on or from where o says, each once and
// in order, over any number of lost connections.
//
// It ends with the error of ctx, or with that of a server that refuses the call. If the
// server cannot be reached, that ends Follow only before the first connection. Later
// it tells o.Lost and connects again until it succeeds.
func (s *EventsService) Follow(ctx context.Context, o EventOptions) iter.Seq2[task.Event, error] {
	return func(yield func(task.Event, error) bool) {
		stream := eventStream{conn: s.conn, o: o, yield: yield}
		for wait := firstWait; ; wait = min(2*wait, mostWait) {
			heard, err := stream.readConnection(ctx)
			var refused *Error

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

			stream.lost = true

			if o.Lost != nil {
				o.Lost(err)
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

// errStopped: whoever read events wants no more.
var errStopped = errors.New("stopped")

// eventStream reads server-sent events, one connection after the other.
type eventStream struct {
	conn  *connection
	o     EventOptions
	yield func(task.Event, error) bool
	begun bool // the server has answered once
	lost  bool
}

// readConnection reads one connection until it ends, and says whether anything came by it.
func (s *eventStream) readConnection(ctx context.Context) (heard bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	silence := fmt.Errorf("the stream of events is silent: %w", context.DeadlineExceeded)
	quiet := time.AfterFunc(s.conn.timeout, func() { cancel(silence) })
	defer quiet.Stop()

	k, err := s.o.newCall()
	if err != nil {
		return false, err
	}

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
	if s.lost && s.o.Lost != nil {
		s.o.Lost(nil)
	}

	s.lost = false
	in := bufio.NewScanner(res.Body)
	in.Buffer(make([]byte, 64<<10), maxMessage)

	var m message
	for quiet.Reset(quietLimit); in.Scan(); quiet.Reset(quietLimit) {
		heard = true

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

	return heard, s.conn.errorWithoutAnswer(err, false)
}

// message is one message of the stream while it comes.
type message struct{ id, data string }

// addLine takes a line; false if it ends the message.
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

// yieldMessage yields what a message holds. From its id the next connection goes on.
func (s *eventStream) yieldMessage(m *message) error {
	if m.id != "" && s.o.Begun != nil {
		s.o.Begun()
		s.o.Begun = nil
	}

	if m.data != "" {
		var e task.Event
		if err := json.Unmarshal([]byte(m.data), &e); err != nil {
			return &Error{Status: http.StatusOK, Code: CodeNotCarillon, Message: fmt.Sprintf("%s sends what is no event: %v", s.conn.base, err)}
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
