// Package logs contains the API handlers for the output of attempts. The output is stored on the node that ran
// the attempt. It is read from this node's Source, or requested from the other node through package peers.
//
// An answer that ends normally is complete. An answer that is cut off is not; the caller can request the rest
// from the byte at which it broke off. The package only reads.
package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve the output of attempts. They are safe for concurrent use.
type Handlers struct {
	Store  *store.Store
	Ref    func(namespace, name string) record.Ref // maps a task to its shard
	Runs   RunFinder
	Peers  *peers.Client
	Node   string // the name of this node
	Source Source // the output stored on this node; nil: none
	// CheckStream returns why the caller of a running request may no longer read the answer.
	CheckStream func(ctx context.Context, r *http.Request) error
	Ends        <-chan struct{} // closed when the node stops serving requests; may be nil
	Heartbeat   time.Duration   // how often a stream checks whether its caller still has access
	Problems    httpapi.ProblemWriter
	// Writable returns an error if this node must not change anything, so that it cannot record reads.
	Writable func() error
	Now      httpapi.Clock

	following httpapi.Slots       // of requests that follow output
	recorded  httpapi.SubjectRate // reads with an audit record
}

// RunFinder finds a run of a task.
type RunFinder interface {
	// Find returns the run with an id or a unique prefix of an id.
	Find(ctx context.Context, ref record.Ref, id string) (task.Run, error)
}

// Followers returns the number of requests that follow output at this node or through it.
func (h *Handlers) Followers() int { return h.following.Held() }

// Routes returns the operations on output.
func (h *Handlers) Routes() []*httpapi.Operation {
	const get = http.MethodGet

	return []*httpapi.Operation{
		{ID: "get-run-logs", Verb: access.Output, Kind: access.Runs, Forwarded: true, Method: get, Path: httpapi.OfRun + "/logs", Tag: "runs", Summary: "Read the output of an attempt on any node",
			Description: logsAbout, Status: 200, Streams: true, Errors: []int{206, 409, 416, 429, 508}, Handler: httpapi.Query(h.runLogs)},
	}
}

const logsAbout = "With follow=true, the answer continues as the attempt writes, and waits for an attempt that has not started. It ends when the attempt ends. " +
	"If anything else ends it, it is cut off (without the last chunk): request the rest, with from. " + client.LogsFromHeader + " contains the offset at which the answer begins. " +
	"With times=true, each line of output is a line of JSON (" + httpapi.TypeLines + "): from (its offset), time, stream (stdout or stderr, if the task " +
	"keeps them apart), text, or base64 if it is not UTF-8, and unended if the line continues in another one. Output stored by earlier versions has no times. " +
	"In a namespace with audit_reads, the request first writes an audit record."

// logsQuery are the parameters of a request for output.
type logsQuery struct {
	Attempt int   `query:"attempt" minimum:"1" maximum:"100" doc:"Counted from 1. Default: the latest that was assigned to a node."`
	Tail    int   `query:"tail" minimum:"1" maximum:"100000" doc:"Starts with this many of the last lines."`
	From    int64 `query:"from" minimum:"0" doc:"Skips this many bytes at the start. Cannot be combined with tail."`
	Follow  bool  `query:"follow" default:"false" doc:"Follows the output until the attempt has ended."`
	Times   bool  `query:"times" default:"false" doc:"Returns lines of JSON with the time of each line of output."`
}

// Check rejects parameters that exclude each other.
func (q *logsQuery) Check(given url.Values) error {
	if q.Tail > 0 && given.Has("from") {
		return task.Invalid(task.CodeBadValue, "from", "cannot be combined with tail")
	}
	return nil
}

// queryValues encodes the parameters for a request to another node.
func (q logsQuery) queryValues() url.Values {
	v := url.Values{}

	if q.Attempt > 0 {
		v.Set("attempt", strconv.Itoa(q.Attempt))
	}

	if q.Tail > 0 {
		v.Set("tail", strconv.Itoa(q.Tail))
	}

	if q.From > 0 {
		v.Set("from", strconv.FormatInt(q.From, 10))
	}

	if q.Follow {
		v.Set("follow", "true")
	}

	if q.Times {
		v.Set("times", "true")
	}

	return v
}

// runLogs serves the output of an attempt, from this node's spool or from the node that ran it.
func (h *Handlers) runLogs(c *httpapi.Call, q logsQuery) (httpapi.Answer, error) {
	ref, id, err := c.RefAndRunID()
	if err != nil {
		return httpapi.Answer{}, err
	}

	if err := c.Rights().RequireOnTask(c.Context(), h.Store, ref, access.Output, access.Runs); err != nil {
		return httpapi.Answer{}, err
	}

	follow, part, err := logPartOf(c, q)
	if err != nil {
		return httpapi.Answer{}, err
	}

	// A follower counts against the limit also if this node only forwards the request.
	if follow {
		end, err := h.following.Acquire(c, maxFollowers, "follow output", h.Node)
		if err != nil {
			return httpapi.Answer{}, err
		}
		defer end()
	}

	// The node that forwarded this request has read the run's record, and names the exact run and attempt. While
	// that attempt runs here, its output is here, and the record need not be read again.
	if httpapi.CallerOf(c.Context()).Forwarder != "" && h.Source != nil && h.Source.Active(ref.Namespace, ref.Name, id, q.Attempt) {
		run := task.Run{Namespace: ref.Namespace, Task: ref.Name, ID: id, State: task.Running, Node: h.Node, Attempt: q.Attempt}
		ctx, cancel := context.WithTimeout(c.Context(), httpapi.RequestTimeout)
		err := h.recordRead(ctx, c, run)
		cancel()
		if err != nil {
			return httpapi.Answer{}, err
		}

		return httpapi.Answer{}, h.serveHere(c, run, q.Attempt, follow, part)
	}

	ctx, cancel := context.WithTimeout(c.Context(), httpapi.RequestTimeout)
	defer cancel()

	run, err := h.Runs.Find(ctx, ref, id)
	if err != nil {
		return httpapi.Answer{}, err
	}

	if run.Fan != nil {
		return httpapi.Answer{}, httpapi.Fail(http.StatusNotFound, client.CodeNoLogs, "run %s has %d parts; only the parts have output", run.ID, run.Fan.Count).
			WithHint("one of the parts: " + task.PartID(run.ID, run.Fan.Numbers()[0]))
	}

	attempt, err := attemptOf(run, q.Attempt)
	if err != nil {
		return httpapi.Answer{}, err
	}

	if err := h.recordRead(ctx, c, run); err != nil {
		return httpapi.Answer{}, err
	}

	if attempt.Node == h.Node {
		return httpapi.Answer{}, h.serveHere(c, run, attempt.Attempt, follow, part)
	}

	// A forwarded request is not forwarded again, so nodes that disagree about the run cannot create a loop.
	if by := httpapi.CallerOf(c.Context()).Forwarder; by != "" {
		return httpapi.Answer{}, httpapi.Fail(http.StatusLoopDetected, client.CodeLoop, "node %s forwarded this request to node %s, but the run was on node %s", task.Quote(by), h.Node, attempt.Node)
	}

	target, err := h.Store.Node(ctx, attempt.Node)
	if errors.Is(err, task.ErrNotFound) {
		return httpapi.Answer{}, nodeAwayError(attempt.Node).WithHint("the output stays on that node; it can be read when the node is back")
	}
	if err != nil {
		return httpapi.Answer{}, err
	}
	if !follow {
		return httpapi.Answer{}, h.forwardRequest(c, target, run, attempt, q)
	}

	// The other node has no token to check, so this node ends the stream when the caller loses its access.
	life, cancel := h.untilRefused(c)
	defer cancel()

	c.Request = c.Request.WithContext(life)

	return httpapi.Answer{}, h.forwardRequest(c, target, run, attempt, q)
}

// logPartOf returns the requested part of an output, and whether to follow it.
func logPartOf(c *httpapi.Call, q logsQuery) (follow bool, p logPart, err error) {
	p = logPart{tail: q.Tail, from: q.From, times: q.Times}
	ranges := len(c.Request.Header.Values("Range")) > 0
	switch {
	case q.Follow && ranges:
		err = task.Invalid(task.CodeBadValue, "Range", "cannot be combined with follow; use from")
	case q.Times && ranges:
		err = task.Invalid(task.CodeBadValue, "Range", "cannot be combined with times; use from")
	}

	return q.Follow && c.Request.Method == http.MethodGet, p, err
}

// attemptOf returns attempt n of a run, or, if n is 0, the latest attempt that was assigned to a node.
func attemptOf(r task.Run, n int) (task.Attempt, error) {
	list := slices.Clone(r.Attempts)
	if r.Node != "" {
		list = append(list, r.AsAttempt())
	}

	for _, a := range slices.Backward(list) {
		if a.Node != "" && (n == 0 || a.Attempt == n) {
			return a, nil
		}
	}

	if n != 0 {
		return task.Attempt{}, httpapi.Fail(http.StatusNotFound, client.CodeNoLogs, "run %s has no attempt %d on record", r.ID, n).WithField("attempt")
	}

	return task.Attempt{}, httpapi.Fail(http.StatusNotFound, client.CodeNoLogs, "run %s was not started: it is %s", r.ID, r.State)
}

// serveHere serves the output of an attempt that was assigned to this node, and follows it if requested.
func (h *Handlers) serveHere(c *httpapi.Call, r task.Run, attempt int, follow bool, p logPart) error {
	if follow {
		return h.followSpool(c, r, attempt, p)
	}
	return h.serveSpool(c, r, attempt, p)
}

// serveSpool serves the stored output of an attempt on this node. It supports Range within the part that p
// selects.
func (h *Handlers) serveSpool(c *httpapi.Call, r task.Run, attempt int, p logPart) error {
	gone := httpapi.Fail(http.StatusNotFound, client.CodeNoLogs, "node %s does not have the output of run %s, attempt %d", h.Node, r.ID, attempt)

	if h.Source == nil {
		return gone
	}

	f, err := h.Source.Open(r.Namespace, r.Task, r.ID, attempt)
	if errors.Is(err, os.ErrNotExist) {
		if last := r.Attempt == attempt && r.State.Final(); last && r.OutputBytes == 0 && r.OutputTail == "" {
			// The attempt wrote nothing, so the answer is empty. If it could not start, the answer contains the
			// reason.
			if r.Reason == task.ReasonStart && r.Message != "" {
				return httpapi.Fail(http.StatusNotFound, client.CodeNoLogs, "run %s could not start: %s", r.ID, r.Message)
			}

			c.Writer.Header().Set("Content-Type", p.contentType())
			c.Writer.WriteHeader(http.StatusOK)

			return nil
		}

		return gone
	}

	if err != nil {
		return fmt.Errorf("open the output of run %s: %w", r.ID, err)
	}

	defer f.Close()

	content, err := p.sectionOf(f)
	if err != nil {
		return fmt.Errorf("read the output of run %s: %w", r.ID, err)
	}

	c.Writer.Header().Set("Content-Type", p.contentType())

	if p.times {
		c.Writer.WriteHeader(http.StatusOK)

		if c.Request.Method == http.MethodHead {
			return nil
		}

		timed := h.newTimedWriter(c.Writer, r, attempt, content.begin)
		timed.ended = !h.Source.Active(r.Namespace, r.Task, r.ID, attempt)
		if _, err := io.Copy(timed, content); err != nil {
			panic(http.ErrAbortHandler) // aborts the answer, so that the caller cannot take it for complete
		}

		return nil
	}

	http.ServeContent(&rangeProblems{c: c, problems: h.Problems}, c.Request, "", time.Time{}, content)

	return nil
}

// rangeProblems replaces the answer of http.ServeContent to an unsatisfiable range by a problem.
type rangeProblems struct {
	c        *httpapi.Call
	problems httpapi.ProblemWriter
	failed   bool
}

// Header implements http.ResponseWriter.
func (p *rangeProblems) Header() http.Header { return p.c.Writer.Header() }

// WriteHeader writes a problem if the status is an error.
func (p *rangeProblems) WriteHeader(status int) {
	if p.failed = status >= http.StatusBadRequest; p.failed {
		f := httpapi.Fail(status, task.CodeOutOfRange, "the range is outside the output").WithField("Range")
		p.problems.Write(p.c.Writer, p.c.Request, f)
		return
	}

	p.c.Writer.WriteHeader(status)
}

// Write writes content, and drops the text that the problem replaces.
func (p *rangeProblems) Write(b []byte) (int, error) {
	if p.failed {
		return len(b), nil // the text that the problem stands for
	}
	return p.c.Writer.Write(b)
}

// nodeAwayError is the failure for output on a node that is not present or does not answer.
func nodeAwayError(node string) *httpapi.Failure {
	return httpapi.Fail(http.StatusServiceUnavailable, client.CodeNodeAway, "node %s, which has the output, is unavailable", node)
}

// forwardRequest forwards the request to the node that stores the output.
func (h *Handlers) forwardRequest(c *httpapi.Call, target task.Node, run task.Run, attempt task.Attempt, q logsQuery) error {
	q.Attempt = attempt.Attempt
	err := h.Peers.Forward(c, target, q.queryValues(), "v1", "namespaces", run.Namespace, "tasks", run.Task, "runs", run.ID, "logs")
	if err != nil {
		f := nodeAwayError(attempt.Node).Because(err)
		f.Detail += ": " + httpapi.Shorten(err.Error())
		return f
	}

	return nil
}

// Source is the output of attempts that is stored on this node.
type Source interface {
	// Open opens what an attempt has written so far. The caller must close it. It returns os.ErrNotExist if
	// nothing is stored, or nothing any more.
	Open(namespace, task, run string, attempt int) (io.ReadSeekCloser, error)
	// Active reports whether an attempt runs on this node and may still write output.
	Active(namespace, task, run string, attempt int) bool
	// Watch signals on woken when Open or Active may return something new. It must never wait for the receiver.
	// The caller must call stop.
	Watch(namespace, task, run string, attempt int) (woken <-chan struct{}, stop func(), err error)
	// Times returns when the parts of the output at or after byte from arrived. The first mark applies to byte
	// from. There may be no marks. If there are many, only the first ones are returned, and a call with the
	// offset of the last one returns the next ones.
	Times(namespace, task, run string, attempt int, from int64) ([]task.Mark, error)
}

// maxRecordedReads is how many reads with an audit record one subject may make within a second on this node. Otherwise
// somebody who may only read could fill the audit log, whose oldest records are removed when it is full.
const maxRecordedReads = 20

// maxForwardedReads is how many reads of a namespace that records them one node may forward to this one within a second.
// The forwarding node names the caller, so that the limit of a subject would not hold against a stolen key of a node.
const maxForwardedReads = 200

// recordRead writes the audit record of a request for output, if the namespace asks for it. The request must be refused if
// that fails.
func (h *Handlers) recordRead(ctx context.Context, c *httpapi.Call, run task.Run) error {
	if !c.Rights().RecordsReads(run.Namespace) {
		return nil
	}

	if err := h.Writable(); err != nil {
		return httpapi.Fail(http.StatusServiceUnavailable, client.CodeRestored, "namespace %s records who reads output, and nothing can be written: %s", run.Namespace, err)
	}

	who := httpapi.CallerOf(c.Context())
	if by := who.Forwarder; by != "" && !h.recorded.Allow("node:"+by, maxForwardedReads, h.Now()) {
		return httpapi.Fail(http.StatusTooManyRequests, client.CodeRateLimited, "node %s has forwarded %d reads of output within the last second, the maximum in namespaces that record them",
			by, maxForwardedReads).WithHint("try again in a second")
	}
	if !h.recorded.Allow(who.Who, maxRecordedReads, h.Now()) {
		return httpapi.Fail(http.StatusTooManyRequests, client.CodeRateLimited, "%s has read output %d times within the last second, the maximum in a namespace that records it",
			who.Name(), maxRecordedReads).WithHint("try again in a second")
	}

	return c.Rights().RecordRead(ctx, h.Store, task.AuditObject{Kind: "run", Namespace: run.Namespace, Name: run.Task, Run: run.ID})
}
