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
	// Times has the stream's Next tell when and by which stream the output came. A
	// server of a former version does not know, and is asked for the output alone.
	Times bool
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
	o.Times = false
	s, err := c.ReadLogs(ctx, namespace, name, id, o)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// ReadLogs is LogsWith, to be read by Next: with the times of lines, if o says so.
func (c *Client) ReadLogs(ctx context.Context, namespace, name, id string, o LogOptions) (*LogStream, error) {
	k := call{header: http.Header{}}
	if o.From > 0 && !o.Times {
		k.header.Set("Range", "bytes="+strconv.FormatInt(o.From, 10)+"-")
	}
	s, err := c.logs(ctx, k, namespace, name, id, o)
	if e := (*Error)(nil); errors.As(err, &e) && e.Status == http.StatusRequestedRangeNotSatisfiable {
		return &LogStream{From: o.From, c: c, body: io.NopCloser(strings.NewReader("")), cancel: func(error) {}}, nil
	}
	if errors.Is(err, errNoTimes) {
		o.Times = false
		return c.ReadLogs(ctx, namespace, name, id, o)
	}
	if err == nil && s.From == 0 {
		s.From = o.From
	}
	return s, err
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
	s, err := c.logs(ctx, k, namespace, name, id, o)
	if errors.Is(err, errNoTimes) {
		o.Times = false
		return c.FollowLogs(ctx, namespace, name, id, o)
	}
	return s, err
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
	if o.Times {
		k.query.Set("times", "true")
		if o.From > 0 {
			k.query.Set("from", strconv.FormatInt(o.From, 10))
		}
	}
	// The deadline is for the beginning of the answer; the rest lasts as long as it is read.
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(c.timeout, func() { cancel(context.DeadlineExceeded) })
	res, err := c.send(ctx, k)
	timer.Stop()
	if err != nil {
		cancel(nil)
		if e := (*Error)(nil); o.Times && errors.As(err, &e) && e.Field == "times" {
			return nil, errNoTimes
		}
		return nil, err
	}
	form := res.Header.Get("Content-Type")
	if o.Times && strings.HasPrefix(form, linesType) {
		from, _ := strconv.ParseInt(res.Header.Get(LogsFromHeader), 10, 64) // absent is 0
		return &LogStream{From: from, c: c, body: res.Body, cancel: cancel, pieces: newPieceReader(res.Body)}, nil
	}
	if !strings.HasPrefix(form, "text/plain") {
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
	pieces *pieceReader // nil: the server tells no times
	read   int64        // by Next, without pieces
	buf    []byte
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
