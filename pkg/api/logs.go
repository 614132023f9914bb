package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// forwardedBy is the header that says which node passed a request on. Such
	// a request is answered here or not at all.
	forwardedBy = "X-Carillon-Forwarded-By"
	maxTail     = 100_000
)

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
	tail, err := c.int("tail", 0, 1, maxTail)
	if err != nil {
		return answer{}, err
	}
	ctx, cancel := context.WithTimeout(c.ctx(), requestTimeout)
	defer cancel()
	run, err := s.runOf(ctx, ref, id)
	if err != nil {
		return answer{}, err
	}
	attempt, err := attemptOf(run, number)
	if err != nil {
		return answer{}, err
	}
	if attempt.Node == s.Node {
		return answer{}, s.serveSpool(c, run, attempt.Attempt, tail)
	}
	if by := c.r.Header.Get(forwardedBy); by != "" {
		return answer{}, fail(http.StatusLoopDetected, client.CodeLoop, "node %s sent this to node %s, but the run was on node %s", task.Quote(by), s.Node, attempt.Node)
	}
	target, err := s.addressOf(ctx, attempt.Node, away(attempt.Node).withHint("the output stays on that node; it can be read when the node is back"))
	if err != nil {
		return answer{}, err
	}
	return answer{}, s.forward(c, target, run, attempt)
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
// understood; with tail it is the last lines that it is a range of.
func (s *server) serveSpool(c *call, r task.Run, attempt, tail int) error {
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
			c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			c.w.WriteHeader(http.StatusOK)
			return nil
		}
		return gone
	}
	if err != nil {
		return fmt.Errorf("open the output of run %s: %w", r.ID, err)
	}
	defer f.Close()
	var content io.ReadSeeker = f
	if tail > 0 {
		if content, err = lastLines(f, tail); err != nil {
			return fmt.Errorf("read the output of run %s: %w", r.ID, err)
		}
	}
	c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
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

// lastLines is the part of f that holds its last n lines. What is written to f
// from now on is not in it.
func lastLines(f io.ReadSeeker, n int) (io.ReadSeeker, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	block := make([]byte, 32<<10)
	end := size
	for end > 0 {
		begin := max(0, end-int64(len(block)))
		part := block[:end-begin]
		if _, err := f.Seek(begin, io.SeekStart); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(f, part); err != nil {
			return nil, err
		}
		for i := len(part) - 1; i >= 0; i-- {
			if part[i] != '\n' || begin+int64(i) == size-1 { // the last line may or may not be ended
				continue
			}
			if n--; n == 0 {
				return &section{f: f, begin: begin + int64(i) + 1, end: size}, nil
			}
		}
		end = begin
	}
	return &section{f: f, end: size}, nil
}

// section is a part of a file that can only be read by seeking.
type section struct {
	f          io.ReadSeeker
	begin, end int64
	at         int64 // from begin
}

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

func (s *section) Read(b []byte) (int, error) {
	left := s.end - s.begin - s.at
	if left <= 0 {
		return 0, io.EOF
	}
	n, err := s.f.Read(b[:min(int64(len(b)), left)])
	s.at += int64(n)
	return n, err
}

// addressOf is where a node's API answers; absent is the error if it is not present.
func (s *server) addressOf(ctx context.Context, node string, absent error) (*url.URL, error) {
	nodes, err := s.Store.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.Name != node {
			continue
		}
		u, err := url.Parse(n.Address)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fail(http.StatusServiceUnavailable, client.CodeNodeAway, "node %s says that it is at %s, which is no address", node, task.Quote(n.Address))
		}
		return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/"}, nil
	}
	return nil, absent
}

func away(node string) *failure {
	return fail(http.StatusServiceUnavailable, client.CodeNodeAway, "node %s, which has the output, is away", node)
}

// newProxy carries requests to other nodes. It keeps no connections: such
// requests are rare, and the handler has nothing that would close them.
func newProxy(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			return dial(ctx, network, address)
		},
		DisableKeepAlives:     true,
		DisableCompression:    true,
		ResponseHeaderTimeout: requestTimeout,
		TLSHandshakeTimeout:   5 * time.Second,
	}
}

// forward passes the request on to the node that has the output.
func (s *server) forward(c *call, target *url.URL, run task.Run, attempt task.Attempt) error {
	q := url.Values{"attempt": {fmt.Sprint(attempt.Attempt)}}
	if c.query.Has("tail") {
		q.Set("tail", c.query.Get("tail"))
	}
	to := target.JoinPath("v1", "namespaces", run.Namespace, "tasks", run.Task, "runs", run.ID, "logs")
	if err := s.pass(c, to, q); err != nil {
		return away(attempt.Node).because(err)
	}
	return nil
}

// pass passes a request on to another node, token included, and its answer back
// as it comes. After an error nothing was answered.
func (s *server) pass(c *call, to *url.URL, q url.Values) error {
	var failed error
	p := httputil.ReverseProxy{
		Transport: s.proxy,
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL = to
			pr.Out.URL.RawQuery = q.Encode()
			pr.Out.Host = to.Host
			pr.Out.Header = http.Header{forwardedBy: {s.Node}, "Authorization": pr.In.Header.Values("Authorization")}
			if v := pr.In.Header.Values("Range"); len(v) > 0 {
				pr.Out.Header["Range"] = v
			}
		},
		ModifyResponse: func(res *http.Response) error {
			for name := range res.Header {
				c.w.Header().Del(name) // the other node has set it as well
			}
			return nil
		},
		FlushInterval: -1,
		ErrorHandler:  func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
		ErrorLog:      zap.NewStdLog(s.log),
	}
	p.ServeHTTP(c.w, c.r)
	return failed
}
