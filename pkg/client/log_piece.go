package client

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

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
	From    int64     `json:"from"`
	Time    task.Time `json:"time,omitzero"`
	Stream  string    `json:"stream,omitempty"`
	Text    *string   `json:"text,omitempty"`
	Base64  []byte    `json:"base64,omitempty"`  // text that is not UTF-8
	Unended bool      `json:"unended,omitempty"` // Text has no newline at its end
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

// mostPiece is the maximum length of a line of the answer. A piece is no longer than the server's buffer, and
// base64 makes it a third longer.
const mostPiece = 1 << 20

// pieceReader reads pieces from an answer.
type pieceReader struct{ lines *bufio.Scanner }

func newPieceReader(body io.Reader) *pieceReader {
	s := bufio.NewScanner(body)
	s.Buffer(nil, mostPiece)
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
