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

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// maxFollowers is how many callers follow outputs at one node, those included
	// that it passes on: each costs a connection or two, and a file.
	maxFollowers = 256
	// followPace is how long a follower lets what is written gather: a process that
	// writes a line at a time costs no more than ten answers a second.
	followPace = 100 * time.Millisecond
	// An attempt that this node has not begun is looked at in etcd now and then: it
	// may end unstarted, or have no process at all.
	unbegunFirst = 250 * time.Millisecond
	unbegunMost  = 5 * time.Second
)

// mayFollow counts a follower in; end counts it out.
func (h *Handlers) mayFollow(c *httpapi.Call) (end func(), err error) {
	if h.following.Add(1) > maxFollowers {
		h.following.Add(-1)
		c.Writer.Header().Set("Retry-After", "2")
		return nil, httpapi.Fail(http.StatusTooManyRequests, client.CodeBusy, "%d callers follow outputs at node %s already", maxFollowers, h.Node).
			WithHint("try again, or ask another node")
	}

	return func() { h.following.Add(-1) }, nil
}

// logFollower sends an attempt's output as it is written. Its answer ends as it
// should when the attempt has; for whatever else ends it, it is cut off, so that
// the caller knows that there may be more.
type logFollower struct {
	*httpapi.Call
	h       *Handlers
	run     task.Run // as it was found last
	attempt int
	at      int64
	out     io.Writer         // takes the output
	file    io.ReadSeekCloser // nil: to be opened, behind at bytes
	beyond  bool              // there are not as many bytes yet
}

// followSpool follows an attempt that was given to this node.
func (h *Handlers) followSpool(c *httpapi.Call, r task.Run, attempt int, p logPart) error {
	if h.Source == nil {
		return h.serveSpool(c, r, attempt, p)
	}

	woken, stop, err := h.Source.Watch(r.Namespace, r.Task, r.ID, attempt)
	if err != nil {
		return err
	}

	defer stop()

	f := &logFollower{Call: c, h: h, run: r, attempt: attempt}
	if !f.active() && f.over() {
		return h.serveSpool(c, r, attempt, p)
	}

	defer f.close()

	if err := f.begin(p); err != nil {
		return fmt.Errorf("read the output of run %s: %w", r.ID, err)
	}

	if !f.follow(woken) {
		panic(http.ErrAbortHandler)
	}

	return nil
}

// follow reports whether all was sent, and the attempt is over.
func (f *logFollower) follow(woken <-chan struct{}) bool {
	beat := time.NewTicker(f.h.Heartbeat)
	defer beat.Stop()

	unbegun, told, begun := unbegunFirst, false, false
	for {
		active := f.active() // before the output is read: what has ended is then read to its end
		n, err := f.send()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false
		}

		var look <-chan time.Time

		switch {
		case active && (n > 0 || told):
			if !f.pause(followPace) {
				return false
			}
		case !active && err == nil && begun:
			return true
		case !active && err == nil:
			// It may have begun since it was asked whether it is active. What has begun,
			// and is not active when it is asked the next time, has ended.
			begun = true
			continue
		case !active && f.over():
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
			if !f.look() {
				return false
			}
		case <-beat.C:
			if f.h.Refused(f.Context(), f.Request) {
				return false // the token is none any more
			}
		case <-f.h.Ends:
			return false
		case <-f.Context().Done():
			return false
		}
	}
}

func (f *logFollower) active() bool {
	return f.h.Source.Active(f.run.Namespace, f.run.Task, f.run.ID, f.attempt)
}

// over reports whether the attempt has ended, by the run's record.
func (f *logFollower) over() bool {
	r := f.run
	return r.Attempt > f.attempt || r.Attempt == f.attempt && r.State.Final() ||
		slices.ContainsFunc(r.Attempts, func(a task.Attempt) bool { return a.Attempt == f.attempt })
}

// look reads the run's record. False: the attempt is not to be waited for here.
func (f *logFollower) look() bool {
	ctx, cancel := context.WithTimeout(f.Context(), httpapi.RequestTimeout)
	defer cancel()

	r, err := f.h.Runs.Find(ctx, f.h.Ref(f.run.Namespace, f.run.Task), f.run.ID)
	if err != nil {
		return errors.Is(err, task.ErrUnavailable) && f.Context().Err() == nil
	}

	f.run = r

	return f.over() || r.Node == f.h.Node
}

// begin sends the head of the answer, which says where the output begins.
func (f *logFollower) begin(p logPart) error {
	f.at = p.from
	if err := f.open(); err == nil && p.tail > 0 {
		if f.at, _, err = p.begin(f.file); err != nil {
			return err
		}
		f.close()
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}

	h := f.Writer.Header()
	h.Set("Content-Type", p.contentType())
	h.Set("X-Accel-Buffering", "no") // proxies would hold it back
	h.Set(client.LogsFromHeader, strconv.FormatInt(f.at, 10))

	f.out = f.Writer
	if p.times {
		f.out = f.h.timed(f.Writer, f.run, f.attempt, f.at)
	}

	f.Writer.WriteHeader(http.StatusOK)

	return http.NewResponseController(f.Writer).Flush()
}

func (f *logFollower) open() (err error) {
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

		f.beyond = f.at > size // a file cannot be asked to go anywhere
	}

	return err
}

func (f *logFollower) close() {
	if f.file != nil {
		f.file.Close()
		f.file = nil
	}
}

var logBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// send sends what there is and was not sent yet. os.ErrNotExist: there is no output.
func (f *logFollower) send() (n int64, err error) {
	if err := f.open(); err != nil {
		return 0, err
	}

	if f.beyond {
		f.close()
		return 0, nil
	}

	buf := logBuffers.Get().(*[]byte) // only while there is something to read
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
		if f.stopped() {
			return n, context.Canceled
		}
	}

	if n == 0 {
		f.close() // it may stand for a file that is not there yet
		return 0, nil
	}

	return n, http.NewResponseController(f.Writer).Flush()
}

func (f *logFollower) stopped() bool {
	select {
	case <-f.h.Ends:
		return true
	default:
		return false
	}
}

func (f *logFollower) pause(d time.Duration) bool {
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
