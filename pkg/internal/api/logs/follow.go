package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// maxFollowers is the maximum number of followers at one node, including those whose requests it forwards.
	// Each needs one or two connections and an open file. One subject may have a quarter of them.
	maxFollowers = 256
	// followPace is how long a follower waits for more output after it was woken. So a process that writes one
	// line at a time causes at most ten writes per second for each follower.
	followPace = 100 * time.Millisecond
	// The follower of an attempt that has not begun on this node reads the run's record at growing intervals,
	// from unbegunFirst to unbegunMost. The attempt may end without having started, and then nothing wakes the
	// follower.
	unbegunFirst = 250 * time.Millisecond
	unbegunMost  = 5 * time.Second
)

// logFollower sends the output of an attempt while it is written. Its answer ends normally only if the attempt
// has ended and all output has been sent. In any other case the connection is aborted, so that the caller knows
// that more output may exist, and continues from the byte that it has.
type logFollower struct {
	*httpapi.Call
	h       *Handlers
	run     task.Run // as read last
	attempt int
	at      int64             // the offset of the next byte to send
	out     io.Writer         // receives the output
	file    io.ReadSeekCloser // nil if it must be opened; positioned at byte at
	beyond  bool              // the output has fewer than at bytes so far
}

// followSpool serves the output of an attempt that was assigned to this node, and follows it until the attempt
// has ended.
func (h *Handlers) followSpool(c *httpapi.Call, r task.Run, attempt int, p logPart) error {
	if h.Source == nil {
		return h.serveSpool(c, r, attempt, p)
	}

	// The watch begins before the state is read, so that no change in between is missed.
	woken, stop, err := h.Source.Watch(r.Namespace, r.Task, r.ID, attempt)
	if err != nil {
		return err
	}

	defer stop()

	f := &logFollower{Call: c, h: h, run: r, attempt: attempt}
	if !f.isActive() && f.attemptEnded() {
		return h.serveSpool(c, r, attempt, p)
	}

	defer f.closeFile()

	if err := f.sendHead(p); err != nil {
		return fmt.Errorf("read the output of run %s: %w", r.ID, err)
	}

	if !f.followOutput(woken) {
		panic(http.ErrAbortHandler) // aborts the answer: it is incomplete
	}

	return nil
}

// followOutput sends output until the attempt has ended. It reports whether the attempt is over and everything was
// sent. It must not report true too early: the caller takes an answer that ends for complete.
func (f *logFollower) followOutput(woken <-chan struct{}) bool {
	beat := time.NewTicker(f.h.Heartbeat)
	defer beat.Stop()

	unbegun, told, begun := unbegunFirst, false, false // told: woken since the last send; begun: the attempt has been active on this node
	for {
		active := f.isActive() // read before the output: if the attempt has ended by now, the read reaches the end of its output
		n, err := f.sendNew()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false
		}

		// look fires when the run's record must be read, because the attempt has not begun on this node.
		var look <-chan time.Time

		switch {
		case active && (n > 0 || told):
			if !f.waitOrStop(followPace) {
				return false
			}
		case !active && err == nil && begun:
			return true
		case !active && err == nil:
			// There is output, but the attempt was not active before the read. It may have begun in between. If it
			// is still not active in the next round, it has ended.
			begun = true
			continue
		case !active && f.attemptEnded():
			return true
		case !active:
			look = time.After(unbegun)
			unbegun = min(2*unbegun, unbegunMost)
		}

		told, begun = false, begun || active

		select {
		case <-woken:
			told = true
		case <-look:
			if !f.readRun() {
				return false
			}
		case <-beat.C:
			if f.h.CheckStream(f.Context(), f.Request) != nil {
				return false // the caller's token is no longer valid
			}
		case <-f.h.Ends:
			return false
		case <-f.Context().Done():
			return false
		}
	}
}

// isActive reports whether the attempt runs on this node.
func (f *logFollower) isActive() bool {
	return f.h.Source.Active(f.run.Namespace, f.run.Task, f.run.ID, f.attempt)
}

// attemptEnded reports whether the attempt has ended, according to the run's record as read last.
func (f *logFollower) attemptEnded() bool {
	r := f.run
	return r.Attempt > f.attempt || r.Attempt == f.attempt && r.State.Final() ||
		slices.ContainsFunc(r.Attempts, func(a task.Attempt) bool { return a.Attempt == f.attempt })
}

// readRun reads the run's record again. It returns false if this node need not wait for the attempt any longer,
// for example because it now belongs to another node. It returns true if etcd is unavailable.
func (f *logFollower) readRun() bool {
	ctx, cancel := context.WithTimeout(f.Context(), httpapi.RequestTimeout)
	defer cancel()

	r, err := f.h.Runs.Find(ctx, f.h.Ref(f.run.Namespace, f.run.Task), f.run.ID)
	if err != nil {
		return errors.Is(err, task.ErrUnavailable) && f.Context().Err() == nil
	}

	f.run = r

	return f.attemptEnded() || r.Node == f.h.Node
}

// sendHead sends the header of the answer, which contains the offset at which the output begins.
func (f *logFollower) sendHead(p logPart) error {
	f.at = p.from
	// If there is no output yet, a tail begins at the start.
	if err := f.openFile(); err == nil && p.tail > 0 {
		if f.at, _, err = p.findBegin(f.file); err != nil {
			return err
		}
		f.closeFile()
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}

	h := f.Writer.Header()
	h.Set("Content-Type", p.contentType())
	h.Set("X-Accel-Buffering", "no") // proxies would buffer the output
	h.Set(client.LogsFromHeader, strconv.FormatInt(f.at, 10))

	f.out = f.Writer
	if p.times {
		f.out = f.h.newTimedWriter(f.Writer, f.run, f.attempt, f.at)
	}

	f.Writer.WriteHeader(http.StatusOK)

	return http.NewResponseController(f.Writer).Flush()
}

// openFile opens the output at byte at. It returns os.ErrNotExist if there is no output.
func (f *logFollower) openFile() (err error) {
	if f.file == nil {
		f.file, err = f.h.Source.Open(f.run.Namespace, f.run.Task, f.run.ID, f.attempt)
		if err != nil {
			f.file = nil
			return err
		}

		var size int64
		if size, err = f.file.Seek(0, io.SeekEnd); err == nil && f.at <= size {
			_, err = f.file.Seek(f.at, io.SeekStart)
		}

		f.beyond = f.at > size // seeking beyond the end of some outputs fails, so it is not tried
	}

	return err
}

// closeFile closes the output. The next send opens it again.
func (f *logFollower) closeFile() {
	if f.file != nil {
		f.file.Close()
		f.file = nil
	}
}

// logBuffers holds read buffers. Most followers wait most of the time and need none.
var logBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// sendNew sends the output that exists and was not sent yet. It returns os.ErrNotExist if there is no output.
func (f *logFollower) sendNew() (n int64, err error) {
	if err := f.openFile(); err != nil {
		return 0, err
	}

	if f.beyond {
		f.closeFile()
		return 0, nil
	}

	buf := logBuffers.Get().(*[]byte) // only while there is output to read
	defer logBuffers.Put(buf)

	for {
		k, err := f.file.Read(*buf)
		if k > 0 {
			if _, err := f.out.Write((*buf)[:k]); err != nil {
				return n, err
			}
			n, f.at = n+int64(k), f.at+int64(k)
		}

		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return n, err
		}
		if f.isStopping() {
			return n, context.Canceled
		}
	}

	if n == 0 {
		f.closeFile() // the next open may find another file: the handle may represent an output that did not exist yet
		return 0, nil
	}

	return n, http.NewResponseController(f.Writer).Flush()
}

// isStopping reports whether the node has stopped serving requests.
func (f *logFollower) isStopping() bool {
	select {
	case <-f.h.Ends:
		return true
	default:
		return false
	}
}

// waitOrStop waits for d. It returns false if the node or the caller stops before.
func (f *logFollower) waitOrStop(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-f.h.Ends:
		return false
	case <-f.Context().Done():
		return false
	}
}

// untilRefused returns a context that ends with the request, when the node stops serving requests, or when the
// caller loses its access. The node to which the request is forwarded cannot check the last, because it does
// not receive the caller's token.
func (h *Handlers) untilRefused(c *httpapi.Call) (context.Context, context.CancelFunc) {
	request := c.Request // captured here, because the caller replaces c.Request while the goroutine runs
	ctx, cancel := context.WithCancel(c.Context())

	callgroup.Start(func() {
		defer cancel()

		beat := time.NewTicker(h.Heartbeat)
		defer beat.Stop()

		for {
			select {
			case <-beat.C:
				if h.CheckStream(ctx, request) != nil {
					return
				}
			case <-h.Ends:
				return
			case <-ctx.Done():
				return
			}
		}
	}, func(p *callgroup.Panic) { h.Problems.LogFailure(request, httpapi.AsFailure(p)) })

	return ctx, cancel
}
