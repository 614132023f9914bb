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

// LogsService reads the output of runs.
type LogsService struct{ conn *connection }

// LogOptions say which part of a run's output is wanted.
type LogOptions struct {
	Attempt int   // 0 is the latest that has any
	Tail    int   // the last so many lines; 0 is all
	From    int64 // bytes to skip; not together with Tail
	// Times has the stream's Next tell when and by which stream the output came. A
	// server of a former version does not know, and is asked for the output alone.
	Times bool
}

// Open returns the output of an attempt, from whichever node ran it. The caller closes
// the stream. With o.From beyond the end of the output the stream is empty.
//
// The error has CodeNoLogs if the output is not kept any more, and CodeNodeAway if the
// node that has it is away. Config.Timeout bounds only the wait for the first byte.
func (s *LogsService) Open(ctx context.Context, namespace, name, id string, o LogOptions) (*LogStream, error) {
	k := call{header: http.Header{}}

	if o.From > 0 && !o.Times {
		k.header.Set("Range", "bytes="+strconv.FormatInt(o.From, 10)+"-")
	}

	stream, err := s.openStream(ctx, k, namespace, name, id, o)
	if e := (*Error)(nil); errors.As(err, &e) && e.Status == http.StatusRequestedRangeNotSatisfiable {
		return &LogStream{From: o.From, conn: s.conn, body: io.NopCloser(strings.NewReader("")), cancel: func(error) {}}, nil
	}

	if errors.Is(err, errNoTimes) {
		o.Times = false
		return s.Open(ctx, namespace, name, id, o)
	}

	if err == nil && stream.From == 0 {
		stream.From = o.From
	}

	return stream, err
}

// Follow is Open that goes on with what the attempt writes, and that waits for an
// attempt that no node has started yet. If o.From is beyond the end of the output, it
// waits for what comes after that.
//
// Read returns io.EOF when the attempt has ended and all of its output was read. It
// returns task.ErrUnavailable if the stream was cut off before that, for example because
// a node stopped; Follow with o.From continues it.
func (s *LogsService) Follow(ctx context.Context, namespace, name, id string, o LogOptions) (*LogStream, error) {
	k := call{query: url.Values{"follow": {"true"}}}

	if o.From > 0 {
		k.query.Set("from", strconv.FormatInt(o.From, 10))
	}

	stream, err := s.openStream(ctx, k, namespace, name, id, o)
	if errors.Is(err, errNoTimes) {
		o.Times = false
		return s.Follow(ctx, namespace, name, id, o)
	}

	return stream, err
}

func (s *LogsService) openStream(ctx context.Context, k call, namespace, name, id string, o LogOptions) (*LogStream, error) {
	if err := checkRunID(id); err != nil {
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
	timer := time.AfterFunc(s.conn.timeout, func() { cancel(context.DeadlineExceeded) })
	res, err := s.conn.sendCall(ctx, k)
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
		return &LogStream{From: from, conn: s.conn, body: res.Body, cancel: cancel, pieces: newPieceReader(res.Body)}, nil
	}

	if !strings.HasPrefix(form, "text/plain") {
		defer cancel(nil)
		defer res.Body.Close()
		return nil, s.conn.notCarillon(res)
	}

	from, _ := strconv.ParseInt(res.Header.Get(LogsFromHeader), 10, 64) // absent is 0

	return &LogStream{From: from, conn: s.conn, body: res.Body, cancel: cancel}, nil
}

// LogStream is output as it comes. Close ends its request.
type LogStream struct {
	From int64 // of output that is followed: the bytes before what is read first

	conn   *connection
	body   io.ReadCloser
	cancel context.CancelCauseFunc
	pieces *pieceReader // nil: the server tells no times
	read   int64        // by Next, without pieces
	buf    []byte
}

func (s *LogStream) Read(b []byte) (int, error) {
	n, err := s.body.Read(b)
	if err != nil && err != io.EOF {
		err = s.conn.errorWithoutAnswer(err, false)
	}
	return n, err
}

func (s *LogStream) Close() error {
	err := s.body.Close()
	s.cancel(nil)
	return err
}
