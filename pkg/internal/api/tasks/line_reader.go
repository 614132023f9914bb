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

// lineReader reads the lines of a body. It keeps at most httpapi.MaxBody bytes of one line in memory.
type lineReader struct {
	in     *bufio.Reader
	number int    // of the line that was read last, from 1
	over   bool   // the body has ended
	broken bool   // the body ended before it was complete
	long   []byte // a line that is longer than the reader's buffer
}

// hasLine reports whether a complete line is buffered, so that nextLine does not block.
func (l *lineReader) hasLine() bool {
	there, _ := l.in.Peek(l.in.Buffered())
	return bytes.IndexByte(there, '\n') >= 0
}

// nextLine reads a line and trims it. The result is valid until the next call. The last line may be empty. An error
// concerns only this line, unless over is set as well.
func (l *lineReader) nextLine() ([]byte, error) {
	l.number++
	l.long = l.long[:0]
	tooLong := false
	for {
		part, err := l.in.ReadSlice('\n')
		if err == nil && len(l.long) == 0 && !tooLong {
			return bytes.TrimSpace(part), nil
		}

		// The rest of a line that is too long is read, but not kept, so that the next line can still be found.
		if tooLong = tooLong || len(l.long)+len(part) > httpapi.MaxBody+len("\r\n"); !tooLong {
			l.long = append(l.long, part...)
		}

		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			l.over = true
		case err != nil: // what looks like the last line may be half of one
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
