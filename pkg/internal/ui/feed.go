package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/callgroup"
)

// FeedEvent is an event that a screen sends to one viewer. The script of the page handles it.
type FeedEvent struct {
	Name string
	ID   string // a single line; the browser names it when it connects again
	Data any    // sent as JSON
}

// startFeed runs the feed of a viewer's screen. stop ends it, and returns when it has ended.
func (s *Server) startFeed(r *http.Request, v *viewer) (stop func()) {
	ctx, cancel := context.WithCancel(r.Context())
	feed, done := make(chan FeedEvent), make(chan struct{})
	v.feed = feed

	send := func(e FeedEvent) error {
		select {
		case feed <- e:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}

	callgroup.Start(func() {
		defer close(done)

		q, err := v.request(s)
		if err == nil {
			err = v.screen.Feed(ctx, q, r.Header.Get("Last-Event-ID"), send)
		}
		if err != nil && ctx.Err() == nil {
			s.log.Debug("the feed of a page has ended", zap.String("at", v.at), zap.Error(err))
		}
	}, func(p *callgroup.Panic) { _ = s.panicked(v.at, p) }) // it is logged, and the page goes on without its feed

	return func() {
		cancel()
		<-done
	}
}

// feedEvent sends an event of a feed.
func (s *stream) feedEvent(e FeedEvent) error {
	data, err := json.Marshal(e.Data)
	if err != nil {
		return err
	}

	var b bytes.Buffer
	if e.ID != "" {
		b.WriteString("id: " + e.ID + "\n")
	}
	b.WriteString("event: " + e.Name + "\n")
	appendData(&b, data)
	b.WriteString("\n")

	return s.write(b.Bytes())
}

// Download is a file that a page links to.
type Download struct {
	Pattern string // of the path: "/ui/runs/{ns}/{id}/output"
	// Open returns the content as text, and the name under which a browser saves it if the parameter "save" is set.
	Open func(ctx context.Context, r *Request) (content io.ReadCloser, name string, err error)
}

// serveDownload sends a file. It is always plain text to a browser, whatever it contains.
func (s *Server) serveDownload(w http.ResponseWriter, r *http.Request, d Download) {
	who, ok := s.useSession(w, r)
	if !ok {
		s.toLogin(w, r)
		return
	}

	q, err := s.newRequest(r, who)
	if err != nil {
		s.toLogin(w, r)
		return
	}

	content, name, err := d.Open(r.Context(), q)
	switch {
	case isUnauthorized(err):
		s.clearCookies(w, r)
		s.toLogin(w, r)
		return
	case err != nil:
		s.showProblem(w, r, problemOf(err))
		return
	}
	defer content.Close()

	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Accel-Buffering", "no")
	if q.Query.Get("save") != "" {
		h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	}

	if err := copyExtending(w, content); err != nil && !errors.Is(err, context.Canceled) {
		panic(http.ErrAbortHandler) // the browser sees that the file is not complete
	}
}

// copyExtending sends a file. It may take as long as the browser reads.
func copyExtending(w http.ResponseWriter, content io.Reader) error {
	out := &stream{w: w, control: http.NewResponseController(w)}
	buf := make([]byte, 32<<10)
	for {
		n, err := content.Read(buf)
		if n > 0 {
			out.extend()
			if _, err := w.Write(buf[:n]); err != nil {
				return context.Canceled // the browser has gone
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
