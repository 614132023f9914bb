package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

// LogsFromHeader is a header of the answer with followed output. It contains the number of bytes of output
// before the first byte that is sent.
const LogsFromHeader = "X-Carillon-Log-From"

// LogsService reads the output of runs.
type LogsService struct{ conn *connection }

// LogOptions select the part of a run's output.
type LogOptions struct {
	Attempt int   // 0 means the latest attempt with output
	Tail    int   // the number of lines at the end; 0 means all lines
	From    int64 // the number of bytes to skip; cannot be combined with Tail
	// Times makes LogStream.Next return the time of arrival and the stream of the output. If the server does not
	// support this, only the output is requested.
	Times bool
}

// Open returns the output of an attempt, whichever node ran it. The caller must close the stream. If o.From is
// beyond the end of the output, the stream is empty.
//
// The error has CodeNoLogs if the output is no longer stored, and CodeNodeAway if the node with the output is
// not reachable. Config.Timeout limits only the wait for the first byte.
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

// Follow is like Open, but the stream continues while the attempt writes. It also waits for an attempt that no
// node has started yet. If o.From is beyond the end of the output, it waits for output after that offset.
//
// Read returns io.EOF when the attempt has ended and all output has been read. It returns task.ErrUnavailable
// if the stream was cut off before, for example because a node stopped. To continue, call Follow with o.From.
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

// In a namespace that records who reads output, a node accepts a limited number of reads of one subject within a second.
// openStream repeats a read that was refused because of that, readTries times with a pause of readPause.
const (
	readTries = 8
	readPause = 300 * time.Millisecond
)

// openStream opens a stream, again if the server refuses it because of too many reads within a second.
func (s *LogsService) openStream(ctx context.Context, k call, namespace, name, id string, o LogOptions) (*LogStream, error) {
	for try := 1; ; try++ {
		stream, err := s.openStreamOnce(ctx, k, namespace, name, id, o)
		e := (*Error)(nil)
		if !errors.As(err, &e) || e.Code != CodeRateLimited || try == readTries {
			return stream, err
		}

		pause := time.NewTimer(readPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, err
		}
	}
}

// openStreamOnce sends a call and returns the answer as a stream.
func (s *LogsService) openStreamOnce(ctx context.Context, k call, namespace, name, id string, o LogOptions) (*LogStream, error) {
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

	// The deadline applies to the beginning of the answer. After that, the stream may last as long as the caller
	// reads it.
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

// LogStream is the output of an attempt. The caller must close it.
type LogStream struct {
	From int64 // the number of bytes of output before the first byte of the stream

	conn   *connection
	body   io.ReadCloser
	cancel context.CancelCauseFunc
	pieces *pieceReader // nil: the server does not return times
	read   int64        // bytes returned by Next, if pieces is nil
	buf    []byte
}

// Read implements io.Reader. An error other than io.EOF means that the output is incomplete.
func (s *LogStream) Read(b []byte) (int, error) {
	n, err := s.body.Read(b)
	if err != nil && err != io.EOF {
		err = s.conn.errorWithoutAnswer(err, false)
	}
	return n, err
}

// Close ends the request.
func (s *LogStream) Close() error {
	err := s.body.Close()
	s.cancel(nil)
	return err
}

// errNoTimes means that the server runs an older version, which does not return the times of output.
var errNoTimes = errors.New("the server does not send times")

// LogPiece is a line of output, or a part of one. Its text arrived at one time through one stream. It is never
// split only because of the size of a buffer.
type LogPiece struct {
	From   int64     // the number of bytes of output before it
	Time   task.Time // the time of arrival; zero if unknown
	Stream string    // task.Stdout or task.Stderr; empty if the streams were not recorded separately
	Text   []byte    // including the newline, if the piece contains the end of the line
}

// pieceJSON is the JSON form of a LogPiece. Either Text or Base64 is set.
type pieceJSON struct {
	From    int64     `json:"from" doc:"The position of the text in the output, in bytes."`
	Time    task.Time `json:"time,omitzero" doc:"When the attempt wrote it."`
	Stream  string    `json:"stream,omitempty" doc:"stdout or stderr, if they are kept apart."`
	Text    *string   `json:"text,omitempty" doc:"The text, without the newline at its end."`
	Base64  []byte    `json:"base64,omitempty" doc:"The text in base64 instead, if it is not UTF-8."`
	Unended bool      `json:"unended,omitempty" doc:"The text has no newline at its end."`
}

// MarshalJSON encodes a piece.
func (p LogPiece) MarshalJSON() ([]byte, error) {
	v := pieceJSON{From: p.From, Time: p.Time, Stream: p.Stream}
	text, whole := bytes.CutSuffix(p.Text, []byte("\n"))
	v.Unended = !whole
	if utf8.Valid(text) {
		v.Text = new(string(text))
	} else {
		v.Base64 = text
	}

	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)

	return b.Bytes(), err
}

// UnmarshalJSON decodes a piece.
func (p *LogPiece) UnmarshalJSON(b []byte) error {
	var v pieceJSON
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}

	*p = LogPiece{From: v.From, Time: v.Time, Stream: v.Stream, Text: v.Base64}
	if v.Text != nil {
		p.Text = []byte(*v.Text)
	}

	if !v.Unended {
		p.Text = append(p.Text, '\n')
	}

	return nil
}

// maxPiece is the maximum length of a line of the answer. A piece is no longer than the server's buffer, and
// base64 makes it a third longer.
const maxPiece = 1 << 20

// pieceReader reads pieces from an answer.
type pieceReader struct{ lines *bufio.Scanner }

func newPieceReader(body io.Reader) *pieceReader {
	s := bufio.NewScanner(body)
	s.Buffer(nil, maxPiece)
	return &pieceReader{s}
}

// Next returns the next piece. It is valid until the next call. With LogOptions.Times a piece is at most one
// line, and has the time of arrival if the server knows it. Errors are those of Read. Do not call both Next and
// Read on one stream.
func (s *LogStream) Next() (LogPiece, error) {
	if s.pieces == nil {
		if s.buf == nil {
			s.buf = make([]byte, 32<<10)
		}

		n, err := s.Read(s.buf)
		p := LogPiece{From: s.From + s.read, Text: s.buf[:n]}

		if s.read += int64(n); n > 0 {
			err = nil // the next call returns the error again
		}

		return p, err
	}

	if !s.pieces.lines.Scan() {
		err := s.pieces.lines.Err()
		if err == nil {
			return LogPiece{}, io.EOF
		}
		return LogPiece{}, s.conn.errorWithoutAnswer(err, false)
	}

	var p LogPiece
	line := s.pieces.lines.Bytes()
	if err := json.Unmarshal(line, &p); err != nil {
		if !strings.HasSuffix(string(line), "}") { // the answer was cut off within a line
			err = io.ErrUnexpectedEOF
		}
		return p, s.conn.errorWithoutAnswer(err, false)
	}

	return p, nil
}
