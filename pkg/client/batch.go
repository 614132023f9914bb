package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// BatchOptions are the options of TasksService.ApplyAll.
type BatchOptions struct {
	CreateOnly bool // a task that exists already fails with CodeExists
	Full       bool // each BatchResult contains the task
	// DryRun checks everything and writes nothing. Each BatchResult contains the Change. A task is compared with
	// what is stored, not with earlier tasks of the batch.
	DryRun bool
	// Ticks is how many ticks each Change lists; 0 means the server's default of 10, and a negative number
	// disables the comparison of ticks.
	Ticks int
}

const (
	linesType = "application/x-ndjson"
	// maxAhead is the maximum number of bytes of tasks that wait to be sent.
	maxAhead = 256 << 10
)

// errStalled is the cause of a batch that ended because the server stopped answering.
var errStalled = fmt.Errorf("no response to the request: %w", context.DeadlineExceeded)

// ApplyAll applies any number of tasks in one request, as Apply does. It reads results while it sends tasks,
// and yields them in the order of tasks. BatchResult.Line counts from 1. A BatchResult with an Error concerns
// only that task.
//
// An error ends the results. It says nothing about tasks whose results were yielded before. The outcome of
// tasks that were taken from the iterator but have no result is unknown (task.ErrUnknown), unless the server
// was not reached or refused the request. Config.Timeout limits the wait for each result. If you stop reading
// results, tasks without a result may or may not be applied.
//
// The iterator tasks runs in its own goroutine, ahead of the results. It may be called once more after the
// results have ended.
func (s *TasksService) ApplyAll(ctx context.Context, tasks iter.Seq[task.Spec], o BatchOptions) iter.Seq2[BatchResult, error] {
	return func(yield func(BatchResult, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)

		out := newOutbox()
		defer out.stop()

		go out.fillFrom(tasks)
		w := watchProgress(s.conn.timeout, out, cancel)
		defer w.stop()

		q := url.Values{}

		if o.CreateOnly {
			q.Set("create_only", "true")
		}

		if o.Full {
			q.Set("full", "true")
		}

		if o.DryRun {
			dryRun(q, o.Ticks)
		}

		// From here on, tasks are sent and results are read at the same time. If both sides only sent, the
		// buffers between them would fill up, and both would wait forever.
		res, err := s.conn.sendCall(ctx, call{method: http.MethodPost, path: "/v1/tasks:batch", query: q, lines: out, stream: true})
		if err != nil {
			yield(BatchResult{}, out.causeOf(err))
			return
		}

		defer res.Body.Close()

		if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != linesType {
			yield(BatchResult{}, s.conn.notCarillon(res))
			return
		}

		in := bufio.NewReaderSize(res.Body, 64<<10)

		for n := int64(0); ; {
			r, err := readResult(in)
			switch {
			case errors.Is(err, io.EOF) && out.allAnswered(n):
				if err := out.firstError(); err != nil {
					yield(BatchResult{}, err)
				}
				return
			case errors.Is(err, io.EOF):
				err = io.ErrUnexpectedEOF
			case err == nil && int64(r.Line) > out.sentCount(): // it is about the body as a whole
				yield(BatchResult{}, r.Err())
				return
			}

			if err != nil {
				if cause := context.Cause(ctx); cause != nil {
					err = fmt.Errorf("%w: %w", err, cause)
				}
				yield(BatchResult{}, out.causeOf(s.conn.errorWithoutAnswer(err, !o.DryRun)))
				return
			}

			n++
			w.noteAnswered(n)

			if !yield(r, nil) {
				return
			}
		}
	}
}

// readResult reads one result. It returns io.EOF only at the end of a complete answer.
func readResult(in *bufio.Reader) (r BatchResult, err error) {
	line, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		long := bytes.Clone(line)
		line, err = in.ReadBytes('\n')
		line = append(long, line...)
	}

	if err != nil {
		if len(line) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return r, err
	}

	return r, json.Unmarshal(line, &r)
}

// Err returns why the line failed, or nil.
func (r BatchResult) Err() error {
	if r.Error == nil {
		return nil
	}
	return problemError(r.Error)
}

// problemError converts a problem within an answer to an Error.
func problemError(p *Problem) *Error {
	return &Error{Status: p.Status, Code: p.Code, Field: p.Field, Message: p.Detail, Hint: p.Hint, ID: p.ID, Errors: p.Errors}
}

// outbox is the body of a batch request. fillFrom adds tasks as lines at one end, and the HTTP transport reads
// them at the other. Its size is limited to maxAhead plus one line.
type outbox struct {
	mu     sync.Mutex
	more   sync.Cond // signals a change of any field below
	lines  []byte    // added and not read yet
	count  int64     // the number of all lines that were added
	over   bool      // no more lines will be added
	closed bool      // nobody reads any more
	err    error     // why fillFrom stopped early
}

// newOutbox returns an empty outbox.
func newOutbox() *outbox {
	o := &outbox{}
	o.more.L = &o.mu
	return o
}

// fillFrom adds tasks until there are no more, or nobody reads them.
func (o *outbox) fillFrom(tasks iter.Seq[task.Spec]) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)

	var err error
	for t := range tasks {
		b.Reset()

		if err = e.Encode(t.WithDefaults()); err != nil {
			err = fmt.Errorf("write task %s/%s as JSON: %w", t.Namespace, t.Name, err)
			break
		}

		if !o.putLine(b.Bytes()) {
			break
		}
	}

	o.mu.Lock()
	defer o.mu.Unlock()

	o.over, o.err = true, err
	o.more.Broadcast()
}

// putLine adds a line. It waits while the outbox is full, and returns false if nobody reads any more.
func (o *outbox) putLine(line []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	for len(o.lines) >= maxAhead && !o.closed {
		o.more.Wait()
	}

	if o.closed {
		return false
	}

	o.lines = append(o.lines, line...)
	o.count++
	o.more.Broadcast()

	return true
}

// Read implements io.Reader. It returns as soon as any bytes are available, so that tasks are sent while others
// are still being added.
func (o *outbox) Read(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()

	for len(o.lines) == 0 && !o.over && !o.closed {
		o.more.Wait()
	}

	if o.closed {
		return 0, io.ErrClosedPipe
	}
	if len(o.lines) == 0 {
		return 0, io.EOF
	}

	n := copy(b, o.lines)
	o.lines = append(o.lines[:0], o.lines[n:]...)
	o.more.Broadcast()

	return n, nil
}

// Close implements io.Closer for the HTTP transport.
func (o *outbox) Close() error { o.stop(); return nil }

// stop makes readers and writers return. It may be called several times.
func (o *outbox) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.closed = true
	o.more.Broadcast()
}

// sentCount returns the number of lines that were added.
func (o *outbox) sentCount() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.count
}

// allAnswered reports whether no answers can follow after the first n.
func (o *outbox) allAnswered(n int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over && o.count == n
}

// firstError returns why fillFrom stopped early, or nil.
func (o *outbox) firstError() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// causeOf returns err, unless an earlier local error explains why the request failed.
func (o *outbox) causeOf(err error) error {
	if mine := o.firstError(); mine != nil {
		return mine
	}
	return err
}

// watchdog ends a batch that waits too long for the next result. A timeout for the whole request would not
// work, because a batch may take hours.
type watchdog struct {
	out     *outbox
	quit    chan struct{}
	mu      sync.Mutex
	n       int64     // the number of results so far
	waiting time.Time // since when a result is outstanding; zero: none is
}

// watchProgress starts a watchdog, which calls end if no result arrives within limit while one is outstanding.
func watchProgress(limit time.Duration, out *outbox, end context.CancelCauseFunc) *watchdog {
	w := &watchdog{out: out, quit: make(chan struct{})}
	go func() {
		t := time.NewTicker(max(limit/10, time.Millisecond))
		defer t.Stop()
		for {
			select {
			case <-w.quit:
				return
			case now := <-t.C:
				if w.isLate(now, limit) {
					end(errStalled)
					return
				}
			}
		}
	}()

	return w
}

// isLate reports whether a result has been outstanding for longer than limit.
func (w *watchdog) isLate(now time.Time, limit time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.out.sentCount() == w.n {
		w.waiting = time.Time{}
		return false
	}

	if w.waiting.IsZero() {
		w.waiting = now
	}

	return now.Sub(w.waiting) > limit
}

// noteAnswered records that n results have arrived.
func (w *watchdog) noteAnswered(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n, w.waiting = n, time.Time{}
}

// stop ends the watchdog. It must be called once.
func (w *watchdog) stop() { close(w.quit) }
