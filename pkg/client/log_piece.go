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

// errNoTimes means that the server is of a version that tells no times of output.
var errNoTimes = errors.New("the server tells no times")

// LogPiece is a line of output, or a part of one: what came of it at once, by one
// stream, and is not cut by the size of an answer's buffers.
type LogPiece struct {
	From   int64     // the bytes of output before it
	Time   task.Time // when it came; zero: that is not known
	Stream string    // task.Stdout or task.Stderr; empty: they were not told apart
	Text   []byte    // with the line's end, if that is in it
}

// pieceJSON is a LogPiece in an answer.
type pieceJSON struct {
	From    int64     `json:"from"`
	Time    task.Time `json:"time,omitzero"`
	Stream  string    `json:"stream,omitempty"`
	Text    *string   `json:"text,omitempty"`
	Base64  []byte    `json:"base64,omitempty"` // what is not UTF-8
	Unended bool      `json:"unended,omitempty"`
}

// MarshalJSON writes a piece as an answer has it.
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

// UnmarshalJSON reads what MarshalJSON writes.
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

// mostPiece is the longest line of an answer that is read: a piece has no more bytes
// than a server's buffer, and what is not UTF-8 takes four for three.
const mostPiece = 1 << 20

// pieceReader reads the lines of an answer.
type pieceReader struct{ lines *bufio.Scanner }

func newPieceReader(body io.Reader) *pieceReader {
	s := bufio.NewScanner(body)
	s.Buffer(nil, mostPiece)
	return &pieceReader{s}
}

// Next is the next piece, valid until the call after it; with Times a line at most,
// and with its time, if the server knows that. Errors are those of Read, which is not
// to be called as well.
func (s *LogStream) Next() (LogPiece, error) {
	if s.pieces == nil {
		if s.buf == nil {
			s.buf = make([]byte, 32<<10)
		}

		n, err := s.Read(s.buf)
		p := LogPiece{From: s.From + s.read, Text: s.buf[:n]}

		if s.read += int64(n); n > 0 {
			err = nil // it comes again
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
		if !strings.HasSuffix(string(line), "}") { // the answer was cut off in its middle
			err = io.ErrUnexpectedEOF
		}
		return p, s.conn.errorWithoutAnswer(err, false)
	}

	return p, nil
}
