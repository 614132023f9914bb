package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/task"
)

// logPart selects a part of an output, by tail or by from, and its format.
type logPart struct {
	tail  int   // the number of lines at the end; 0: from applies
	from  int64 // the number of bytes to skip at the start
	times bool  // format: lines of JSON with times
}

// contentType returns the media type of the answer.
func (p logPart) contentType() string {
	if p.times {
		return httpapi.TypeLines
	}
	return "text/plain; charset=utf-8"
}

// findBegin returns the offset in f at which the part begins, and the size of f.
func (p logPart) findBegin(f io.ReadSeeker) (begin, size int64, err error) {
	if size, err = f.Seek(0, io.SeekEnd); err != nil || p.tail == 0 {
		return p.from, size, err
	}
	begin, err = lastLines(f, size, p.tail)
	return begin, size, err
}

// sectionOf returns the part of f. It does not include what is written to f afterwards.
func (p logPart) sectionOf(f io.ReadSeeker) (*section, error) {
	begin, size, err := p.findBegin(f)
	if err != nil {
		return nil, err
	}

	s := &section{f: f, begin: min(begin, size), end: size}
	_, err = s.Seek(0, io.SeekStart)

	return s, err
}

// lastLines returns the offset at which the last n lines of the first size bytes of f begin. It reads backward
// in blocks, so its cost depends on the part and not on the size of f.
func lastLines(f io.ReadSeeker, size int64, n int) (int64, error) {
	block := make([]byte, 32<<10)
	end := size
	for end > 0 {
		begin := max(0, end-int64(len(block)))
		part := block[:end-begin]

		if _, err := f.Seek(begin, io.SeekStart); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(f, part); err != nil {
			return 0, err
		}

		for i := len(part) - 1; i >= 0; i-- {
			if part[i] != '\n' || begin+int64(i) == size-1 { // a newline at the very end terminates the last line and begins no new one
				continue
			}
			if n--; n == 0 {
				return begin + int64(i) + 1, nil
			}
		}

		end = begin
	}

	return 0, nil
}

// section is a part of a file. io.SectionReader is not usable, because a compressed file offers only Seek and
// Read.
type section struct {
	f          io.ReadSeeker
	begin, end int64
	at         int64 // relative to begin
}

// Seek implements io.Seeker, relative to the section.
func (s *section) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += s.at
	case io.SeekEnd:
		offset += s.end - s.begin
	}

	if offset < 0 {
		return 0, errors.New("seek before the beginning")
	}

	s.at = offset
	_, err := s.f.Seek(s.begin+offset, io.SeekStart)

	return offset, err
}

// Read implements io.Reader within the section.
func (s *section) Read(b []byte) (int, error) {
	left := s.end - s.begin - s.at
	if left <= 0 {
		return 0, io.EOF
	}

	n, err := s.f.Read(b[:min(int64(len(b)), left)])
	s.at += int64(n)

	return n, err
}

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
