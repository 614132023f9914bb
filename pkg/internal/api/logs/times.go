package logs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// timedWriter writes output as lines of JSON that tell when it came and by which
// stream, of an attempt's output from byte at on. A line of output that comes in
// several writes, or by several streams, is several lines.
type timedWriter struct {
	http.ResponseWriter
	times func(from int64) ([]task.Mark, error)
	at    int64
	marks []task.Mark // the first is in force at byte at
	all   bool        // there are no others behind them
	ended bool        // nor will there be: the attempt has ended
}

// timed is w for the output of an attempt.
func (h *Handlers) timed(w http.ResponseWriter, r task.Run, attempt int, at int64) *timedWriter {
	return &timedWriter{ResponseWriter: w, at: at, times: func(from int64) ([]task.Mark, error) {
		return h.Source.Times(r.Namespace, r.Task, r.ID, attempt, from)
	}}
}

func (t *timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func (t *timedWriter) Write(b []byte) (int, error) {
	t.all = t.all && t.ended // what is written now came after what was known before
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)

	for rest := b; len(rest) > 0; {
		piece, err := t.piece(rest)
		if err != nil {
			return 0, err
		}

		rest = rest[len(piece.Text):]
		t.at += int64(len(piece.Text))

		if err := e.Encode(piece); err != nil {
			return 0, err
		}

		if out.Len() > 64<<10 || len(rest) == 0 {
			if _, err := t.ResponseWriter.Write(out.Bytes()); err != nil {
				return 0, err
			}
			out.Reset()
		}
	}

	return len(b), nil
}

// piece is what of b is of one line and one stream.
func (t *timedWriter) piece(b []byte) (client.LogPiece, error) {
	n := len(b)
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		n = i + 1
	}

	if err := t.know(t.at + int64(n)); err != nil {
		return client.LogPiece{}, err
	}

	for len(t.marks) > 1 && t.marks[1].From <= t.at {
		t.marks = t.marks[1:]
	}

	p := client.LogPiece{From: t.at, Text: b[:n]}

	if len(t.marks) == 0 || t.marks[0].From > t.at {
		return p, nil
	}

	p.Time, p.Stream = task.At(t.marks[0].At), t.marks[0].Stream
	for _, m := range t.marks[1:] {
		if m.From >= t.at+int64(n) {
			break
		}

		if m.Stream != p.Stream {
			p.Text = b[:m.From-t.at]
			break
		}
	}

	return p, nil
}

// know reads the marks of what comes before byte end, if there are any.
func (t *timedWriter) know(end int64) error {
	for !t.all && (len(t.marks) == 0 || t.marks[len(t.marks)-1].From < end) {
		from := t.at
		if n := len(t.marks); n > 0 {
			n--
			from, t.marks = t.marks[n].From, t.marks[:n] // which comes first once more
		}

		marks, err := t.times(from)
		if err != nil {
			return fmt.Errorf("read the times of an output: %w", err)
		}

		t.marks, t.all = append(t.marks, marks...), len(marks) <= 1
	}

	return nil
}
