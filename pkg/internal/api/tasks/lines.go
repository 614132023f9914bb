package tasks

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/task"
)

// lines reads the lines of a body, and keeps no more of one than it may have.
type lines struct {
	in     *bufio.Reader
	number int    // of the line that was read last
	over   bool   // no more follow
	broken bool   // the body ended before it was complete
	long   []byte // what does not fit into the reader's buffer
}

// ready reports whether a whole line has arrived.
func (l *lines) ready() bool {
	there, _ := l.in.Peek(l.in.Buffered())
	return bytes.IndexByte(there, '\n') >= 0
}

// next reads a line, which lasts until the next is read. The last may be empty.
// An error is the line's.
func (l *lines) next() ([]byte, error) {
	l.number++
	l.long = l.long[:0]
	tooLong := false
	for {
		part, err := l.in.ReadSlice('\n')
		if err == nil && len(l.long) == 0 && !tooLong {
			return bytes.TrimSpace(part), nil
		}

		if tooLong = tooLong || len(l.long)+len(part) > httpapi.MaxBody+len("\r\n"); !tooLong {
			l.long = append(l.long, part...)
		}

		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			l.over = true
		case err != nil: // what looks like a last line may be half of one
			l.over, l.broken = true, true
			return nil, httpapi.Fail(http.StatusBadRequest, task.CodeBadJSON, "the body ends too early").Because(err)
		}

		line := bytes.TrimSpace(l.long)
		if tooLong || len(line) > httpapi.MaxBody {
			return nil, httpapi.Fail(http.StatusRequestEntityTooLarge, client.CodeTooLarge, "the line is longer than %d bytes", httpapi.MaxBody)
		}

		return line, nil
	}
}
