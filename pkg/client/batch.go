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

// BatchOptions say how many tasks are applied.
type BatchOptions struct {
	CreateOnly bool // a task that is there already fails, with CodeExists
	Full       bool // each BatchResult has the task
	// DryRun has everything checked and nothing written: each BatchResult has the
	// Change. Tasks are compared with what is there, not with each other.
	DryRun bool
	// Ticks is how many ticks each Change lists; 0 is the server's default of 10,
	// below 0 none are looked for.
	Ticks int
}

const (
	linesType = "application/x-ndjson"
	// maxAhead is how many bytes of tasks wait to be sent at most.
	maxAhead = 256 << 10
)

// errStalled ends a batch whose server says nothing any more.
var errStalled = fmt.Errorf("no answer for what was sent: %w", context.DeadlineExceeded)

// ApplyAll is Apply for any number of tasks in one request. It reads results while it
// still sends tasks, and yields them in the order of tasks; BatchResult.Line counts
// from 1. A BatchResult with an Error is about that task only.
//
// An error ends the results. It says nothing about the tasks whose results were yielded
// before. The outcome of tasks that were taken from the iterator but have no result is
// unknown (task.ErrUnknown), unless the server was not reached or refused the request.
// Config.Timeout bounds the wait for each result. If you stop reading results, tasks
// without a result may or may not be applied.
//
// The iterator tasks runs in a goroutine of its own, ahead of the results, and may
// be called once more after the results have ended.
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

// Err is why the line failed; nil if it did not.
func (r BatchResult) Err() error {
	if r.Error == nil {
		return nil
	}
	return problemError(r.Error)
}

// problemError is a problem that came within an answer.
func problemError(p *Problem) *Error {
	return &Error{Status: p.Status, Code: p.Code, Field: p.Field, Message: p.Detail, Hint: p.Hint, ID: p.ID}
}

// outbox is the body of a batch: tasks are put in at one end and taken out as
// lines at the other.
type outbox struct {
	mu     sync.Mutex
	more   sync.Cond
	lines  []byte
	count  int64 // of all lines that were put in
	over   bool  // no more are put in
	closed bool  // no more are taken out
	err    error // why it is over
}

func newOutbox() *outbox {
	o := &outbox{}
	o.more.L = &o.mu
	return o
}

// fillFrom puts tasks in until there are no more or nobody takes them.
func (o *outbox) fillFrom(tasks iter.Seq[task.Spec]) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)

	var err error
	for t := range tasks {
		b.Reset()

		if err = e.Encode(t); err != nil {
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

// Read takes what is there, as soon as anything is.
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

// Close is the transport's.
func (o *outbox) Close() error { o.stop(); return nil }

func (o *outbox) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.closed = true
	o.more.Broadcast()
}

func (o *outbox) sentCount() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.count
}

// allAnswered reports whether n answers are all that can come.
func (o *outbox) allAnswered(n int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over && o.count == n
}

func (o *outbox) firstError() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// causeOf is err, unless something went wrong here before.
func (o *outbox) causeOf(err error) error {
	if mine := o.firstError(); mine != nil {
		return mine
	}
	return err
}

// watchdog ends a batch that waits too long for an answer.
type watchdog struct {
	out     *outbox
	quit    chan struct{}
	mu      sync.Mutex
	n       int64     // answers
	waiting time.Time // since when there is one to wait for
}

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

func (w *watchdog) noteAnswered(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n, w.waiting = n, time.Time{}
}

func (w *watchdog) stop() { close(w.quit) }
