package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// LogsFromHeader is the header of an output that is followed: how many bytes of it
// come before what is sent.
const LogsFromHeader = "X-Carillon-Log-From"

// LogOptions say which part of a run's output is wanted.
type LogOptions struct {
	Attempt int   // 0 is the latest that has any
	Tail    int   // the last so many lines; 0 is all
	From    int64 // bytes to skip; not together with Tail
}

// Logs is the output of an attempt (0: the latest), from whatever node ran it.
// The caller closes it. Code CodeNoLogs if there is none any more, CodeNodeAway
// if the node that has it is away.
func (c *Client) Logs(ctx context.Context, namespace, name, id string, attempt int) (io.ReadCloser, error) {
	return c.LogsWith(ctx, namespace, name, id, LogOptions{Attempt: attempt})
}

// LogsWith is Logs, of a part. From skips so many bytes; there may be none left,
// which is no error.
func (c *Client) LogsWith(ctx context.Context, namespace, name, id string, o LogOptions) (io.ReadCloser, error) {
	k := call{header: http.Header{}}
	if o.From > 0 {
		k.header.Set("Range", "bytes="+strconv.FormatInt(o.From, 10)+"-")
	}
	s, err := c.logs(ctx, k, namespace, name, id, o)
	if e := (*Error)(nil); errors.As(err, &e) && e.Status == http.StatusRequestedRangeNotSatisfiable {
		return io.NopCloser(strings.NewReader("")), nil
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// FollowLogs is LogsWith that goes on with what the attempt writes, and waits for one
// that a node has not started yet. Read returns io.EOF when the attempt has ended and
// all is read. It returns an error that is task.ErrUnavailable if the stream was cut
// off before that, as when a node stops: FollowLogs with From goes on with it. From
// beyond what is there waits for what comes behind it.
func (c *Client) FollowLogs(ctx context.Context, namespace, name, id string, o LogOptions) (*LogStream, error) {
	k := call{query: url.Values{"follow": {"true"}}}
	if o.From > 0 {
		k.query.Set("from", strconv.FormatInt(o.From, 10))
	}
	return c.logs(ctx, k, namespace, name, id, o)
}

func (c *Client) logs(ctx context.Context, k call, namespace, name, id string, o LogOptions) (*LogStream, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	path, err := taskPath(namespace, name, "runs", id, "logs")
	if err != nil {
		return nil, err
	}
	k.method, k.path, k.stream = http.MethodGet, path, true
	if k.query == nil {
		k.query = url.Values{}
	}
	if o.Attempt != 0 {
		k.query.Set("attempt", strconv.Itoa(o.Attempt))
	}
	if o.Tail != 0 {
		k.query.Set("tail", strconv.Itoa(o.Tail))
	}
	// The deadline is for the beginning of the answer; the rest lasts as long as it is read.
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(c.timeout, func() { cancel(context.DeadlineExceeded) })
	res, err := c.send(ctx, k)
	timer.Stop()
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/plain") {
		defer cancel(nil)
		defer res.Body.Close()
		return nil, c.notCarillon(res)
	}
	from, _ := strconv.ParseInt(res.Header.Get(LogsFromHeader), 10, 64) // absent is 0
	return &LogStream{From: from, c: c, body: res.Body, cancel: cancel}, nil
}

// LogStream is output as it comes. Close ends its request.
type LogStream struct {
	From int64 // of output that is followed: the bytes before what is read first

	c      *Client
	body   io.ReadCloser
	cancel context.CancelCauseFunc
}

func (s *LogStream) Read(b []byte) (int, error) {
	n, err := s.body.Read(b)
	if err != nil && err != io.EOF {
		err = s.c.failed(err, false)
	}
	return n, err
}

func (s *LogStream) Close() error {
	err := s.body.Close()
	s.cancel(nil)
	return err
}
