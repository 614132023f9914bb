package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

const maxTail = 100_000

// runLogs serves the output of an attempt: from this node's spool, or from the
// node that ran it.
func (s *server) runLogs(c *call) (answer, error) {
	ref, id, err := c.refAndRun()
	if err != nil {
		return answer{}, err
	}
	number, err := c.int("attempt", 0, 1, task.MaxAttempts)
	if err != nil {
		return answer{}, err
	}
	follow, part, err := c.logPart()
	if err != nil {
		return answer{}, err
	}
	if follow {
		end, err := s.mayFollow(c)
		if err != nil {
			return answer{}, err
		}
		defer end()
	}
	ctx, cancel := context.WithTimeout(c.ctx(), requestTimeout)
	defer cancel()
	run, err := s.runOf(ctx, ref, id)
	if err != nil {
		return answer{}, err
	}
	if run.Fan != nil {
		return answer{}, fail(http.StatusNotFound, client.CodeNoLogs, "run %s has %d parts, and no output but theirs", run.ID, run.Fan.Count).
			withHint("one of them: " + task.PartID(run.ID, run.Fan.Numbers()[0]))
	}
	attempt, err := attemptOf(run, number)
	if err != nil {
		return answer{}, err
	}
	if attempt.Node == s.Node {
		if follow {
			return answer{}, s.followSpool(c, run, attempt.Attempt, part)
		}
		return answer{}, s.serveSpool(c, run, attempt.Attempt, part)
	}
	if by := callerOf(c.ctx()).from; by != "" {
		return answer{}, fail(http.StatusLoopDetected, client.CodeLoop, "node %s sent this to node %s, but the run was on node %s", task.Quote(by), s.Node, attempt.Node)
	}
	target, err := s.Store.Node(ctx, attempt.Node)
	if errors.Is(err, task.ErrNotFound) {
		return answer{}, away(attempt.Node).withHint("the output stays on that node; it can be read when the node is back")
	}
	if err != nil {
		return answer{}, err
	}
	if !follow {
		return answer{}, s.forward(c, target, run, attempt)
	}
	life, cancel := s.untilRefused(c)
	defer cancel()
	c.r = c.r.WithContext(life)
	return answer{}, s.forward(c, target, run, attempt)
}

// logPart reads which part of an output is asked for, and whether to go on.
func (c *call) logPart() (follow bool, p logPart, err error) {
	if p.tail, err = c.int("tail", 0, 1, maxTail); err != nil {
		return false, p, err
	}
	from, err := c.int("from", 0, 0, math.MaxInt)
	if err != nil {
		return false, p, err
	}
	p.from = int64(from)
	if follow, err = c.bool("follow"); err != nil {
		return false, p, err
	}
	if p.times, err = c.bool("times"); err != nil {
		return false, p, err
	}
	switch {
	case p.tail > 0 && c.query.Has("from"):
		err = task.Invalid(task.CodeBadValue, "from", "not together with tail")
	case follow && len(c.r.Header.Values("Range")) > 0:
		err = task.Invalid(task.CodeBadValue, "Range", "not together with follow; use from")
	case p.times && len(c.r.Header.Values("Range")) > 0:
		err = task.Invalid(task.CodeBadValue, "Range", "not together with times; use from")
	}
	return follow && c.r.Method == http.MethodGet, p, err
}

// attemptOf is an attempt of a run that was given to a node: number n, or the
// latest if n is 0.
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
		return task.Attempt{}, fail(http.StatusNotFound, client.CodeNoLogs, "run %s has no attempt %d on record", r.ID, n).withField("attempt")
	}
	return task.Attempt{}, fail(http.StatusNotFound, client.CodeNoLogs, "run %s was not started: it is %s", r.ID, r.State)
}

// serveSpool writes what this node keeps of an attempt's output. Range is
// understood, as a range of the part.
func (s *server) serveSpool(c *call, r task.Run, attempt int, p logPart) error {
	gone := fail(http.StatusNotFound, client.CodeNoLogs, "node %s keeps no output of run %s, attempt %d, any more", s.Node, r.ID, attempt)
	if s.Logs == nil {
		return gone
	}
	f, err := s.Logs.Open(r.Namespace, r.Task, r.ID, attempt)
	if errors.Is(err, os.ErrNotExist) {
		if last := r.Attempt == attempt && r.State.Final(); last && r.OutputBytes == 0 && r.OutputTail == "" {
			// It wrote nothing: that is what is told. What kept it from starting is
			// all there is to say of one that did not.
			if r.Reason == task.ReasonStart && r.Message != "" {
				return fail(http.StatusNotFound, client.CodeNoLogs, "run %s could not start: %s", r.ID, r.Message)
			}
			c.w.Header().Set("Content-Type", p.contentType())
			c.w.WriteHeader(http.StatusOK)
			return nil
		}
		return gone
	}
	if err != nil {
		return fmt.Errorf("open the output of run %s: %w", r.ID, err)
	}
	defer f.Close()
	content, err := p.of(f)
	if err != nil {
		return fmt.Errorf("read the output of run %s: %w", r.ID, err)
	}
	c.w.Header().Set("Content-Type", p.contentType())
	if p.times {
		c.w.WriteHeader(http.StatusOK)
		if c.r.Method == http.MethodHead {
			return nil
		}
		timed := s.timed(c.w, r, attempt, content.begin)
		timed.ended = !s.Logs.Active(r.Namespace, r.Task, r.ID, attempt)
		if _, err := io.Copy(timed, content); err != nil {
			panic(http.ErrAbortHandler) // who reads it must not take it for whole
		}
		return nil
	}
	http.ServeContent(&rangeProblems{c: c}, c.r, "", time.Time{}, content)
	return nil
}

// rangeProblems makes a problem of the answer to a range that cannot be served.
type rangeProblems struct {
	c      *call
	failed bool
}

func (p *rangeProblems) Header() http.Header { return p.c.w.Header() }

func (p *rangeProblems) WriteHeader(status int) {
	if p.failed = status >= http.StatusBadRequest; p.failed {
		f := fail(status, task.CodeOutOfRange, "there is nothing in that range").withField("Range")
		p.c.s.writeError(p.c.w, p.c.r, f)
		return
	}
	p.c.w.WriteHeader(status)
}

func (p *rangeProblems) Write(b []byte) (int, error) {
	if p.failed {
		return len(b), nil // the text that the problem stands for
	}
	return p.c.w.Write(b)
}

func away(node string) *failure {
	return fail(http.StatusServiceUnavailable, client.CodeNodeAway, "node %s, which has the output, is away", node)
}

// forward passes the request on to the node that has the output.
func (s *server) forward(c *call, target task.Node, run task.Run, attempt task.Attempt) error {
	q := url.Values{"attempt": {fmt.Sprint(attempt.Attempt)}}
	for _, name := range []string{"tail", "from", "follow", "times"} {
		if c.query.Has(name) {
			q.Set(name, c.query.Get(name))
		}
	}
	err := s.forwardRead(c, target, q, "v1", "namespaces", run.Namespace, "tasks", run.Task, "runs", run.ID, "logs")
	if err != nil {
		f := away(attempt.Node).because(err)
		f.Detail += ": " + short(err.Error())
		return f
	}
	return nil
}
