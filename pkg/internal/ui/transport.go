package ui

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/carillonhq/carillon/pkg/callgroup"
)

// transport calls the API's handler in this process, on behalf of a viewer. The API sees the address and the client
// certificate of the viewer's connection.
type transport struct {
	api    http.Handler
	remote string // the address of the viewer, as in http.Request.RemoteAddr
	tls    *tls.ConnectionState
}

// RoundTrip implements http.RoundTripper. It returns when the handler begins its answer. The handler's context ends when
// the body of the answer is closed.
func (t *transport) RoundTrip(out *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(out.Context())

	in := out.WithContext(ctx)
	u := *out.URL
	u.Scheme, u.Host = "", ""
	in.URL, in.Header = &u, out.Header.Clone()
	in.RemoteAddr, in.TLS, in.RequestURI = t.remote, t.tls, u.RequestURI()
	if in.Body == nil {
		in.Body = http.NoBody
	}

	body, writer := io.Pipe()
	w := &pipedAnswer{header: http.Header{}, body: writer, begun: make(chan struct{})}
	callgroup.Start(func() {
		defer cancel()
		w.finish(callgroup.Catch(func() { t.api.ServeHTTP(w, in) }))
	}, func(*callgroup.Panic) {})

	select {
	case <-w.begun:
	case <-ctx.Done():
	}

	// The context also ends when the handler returns, which may be before this goroutine has noticed the answer.
	select {
	case <-w.begun:
	default:
		body.CloseWithError(ctx.Err())
		cancel()
		return nil, context.Cause(ctx)
	}

	return &http.Response{
		Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: &answerBody{body, cancel}, ContentLength: -1, Request: out,
	}, nil
}

// answerBody ends the request when it is closed.
type answerBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b *answerBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// pipedAnswer is the http.ResponseWriter of a call in this process. Only the goroutine of the handler uses it, until begun
// is closed.
type pipedAnswer struct {
	header http.Header
	body   *io.PipeWriter

	once   sync.Once
	begun  chan struct{} // closed when status and sent are set
	status int
	sent   http.Header
}

func (w *pipedAnswer) Header() http.Header { return w.header }

func (w *pipedAnswer) WriteHeader(status int) {
	if status < 200 {
		return // interim responses are for slow networks
	}

	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.begun)
	})
}

func (w *pipedAnswer) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}

// Flush lets a stream begin. Each write reaches the reader at once.
func (w *pipedAnswer) Flush() { w.WriteHeader(http.StatusOK) }

// finish ends the answer when the handler has returned. A panic of the handler, which the API has logged, cuts the answer off,
// as net/http would do.
func (w *pipedAnswer) finish(p *callgroup.Panic) {
	if p != nil {
		w.WriteHeader(http.StatusInternalServerError)
		w.body.CloseWithError(io.ErrUnexpectedEOF)
		return
	}

	w.WriteHeader(http.StatusOK)
	w.body.Close()
}
