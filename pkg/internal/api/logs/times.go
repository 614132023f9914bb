package logs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// timedWriter converts output, from byte at on, to lines of JSON that also contain the time of arrival and the
// stream. A line of output that arrives in several writes, or through several streams, becomes several lines of
// JSON.
type timedWriter struct {
	http.ResponseWriter
	times func(from int64) ([]task.Mark, error) // reads marks: see Source.Times
	at    int64                                 // the offset of the next byte of output
	marks []task.Mark                           // the first one applies to byte at
	all   bool                                  // no marks exist after these
	ended bool                                  // the attempt has ended, so no marks will be added
}

// newTimedWriter returns a timedWriter for the output of an attempt from byte at on.
func (h *Handlers) newTimedWriter(w http.ResponseWriter, r task.Run, attempt int, at int64) *timedWriter {
	return &timedWriter{ResponseWriter: w, at: at, times: func(from int64) ([]task.Mark, error) {
		return h.Source.Times(r.Namespace, r.Task, r.ID, attempt, from)
	}}
}

// Unwrap gives http.ResponseController access to Flush.
func (t *timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Write converts output and writes the result. It writes at most about 64 KiB of JSON at once.
func (t *timedWriter) Write(b []byte) (int, error) {
	t.all = t.all && t.ended // output that arrives now may have marks that did not exist at the last read
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)

	for rest := b; len(rest) > 0; {
		piece, err := t.nextPiece(rest)
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

// nextPiece returns the beginning of b that belongs to one line and one stream.
func (t *timedWriter) nextPiece(b []byte) (client.LogPiece, error) {
	n := len(b)
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		n = i + 1
	}

	if err := t.readMarks(t.at + int64(n)); err != nil {
		return client.LogPiece{}, err
	}

	// Marks before byte at are no longer needed.
	for len(t.marks) > 1 && t.marks[1].From <= t.at {
		t.marks = t.marks[1:]
	}

	p := client.LogPiece{From: t.at, Text: b[:n]}

	// Output of earlier versions of Carillon, and output that a crash cut off from its index, has no mark.
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

// readMarks reads the marks for the output before byte end, as far as they exist.
func (t *timedWriter) readMarks(end int64) error {
	for !t.all && (len(t.marks) == 0 || t.marks[len(t.marks)-1].From < end) {
		from := t.at
		if n := len(t.marks); n > 0 {
			n--
			from, t.marks = t.marks[n].From, t.marks[:n] // the last mark is returned again as the first one of the next read
		}

		marks, err := t.times(from)
		if err != nil {
			return fmt.Errorf("read the times of an output: %w", err)
		}

		// One mark or none means that no marks follow the one at from.
		t.marks, t.all = append(t.marks, marks...), len(marks) <= 1
	}

	return nil
}
