package client

import (
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
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	maxAnswer  = 256 << 20 // the maximum number of bytes of an answer; output has no limit
	maxProblem = 1 << 20   // the maximum number of bytes of an answer with an error
)

// connection sends calls to the servers of one cluster. All services of a Client share it. It is safe for concurrent use.
type connection struct {
	servers servers
	token   string
	timeout time.Duration

	readOnly bool
	trace    func(Sent)
}

// call is one request. At most one of body, raw and lines is set.
type call struct {
	method  string
	path    string
	query   url.Values
	header  http.Header
	body    any    // encoded as JSON
	raw     []byte // sent unchanged, with the content type rawType
	rawType string
	lines   io.Reader // sent as NDJSON while it is read
	stream  bool      // the caller reads the answer, without a deadline

	wait time.Duration // the server may answer later by this
}

// mayWrite reports whether a call may change something, judged by its method and path. If the answer to such a
// call is lost, its outcome is unknown.
func (c call) mayWrite() bool {
	return c.method != http.MethodGet && c.path != schedulePath && !c.query.Has(dryRunParam)
}

// doCall sends a call and decodes its answer into out, unless out is nil.
func (c *connection) doCall(ctx context.Context, k call, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout+k.wait)
	defer cancel()

	if err := c.checkReadOnly(k); err != nil {
		return err
	}

	return c.servers.try(ctx, k, func(ctx context.Context, to *server) error {
		res, err := c.sendTo(ctx, to, k)
		if err != nil {
			return err
		}

		defer res.Body.Close()

		return to.decodeAnswer(res, k.mayWrite(), out)
	})
}

// decodeAnswer reads the answer of a call into out, unless out is nil. writes states whether the call may have changed
// something.
func (s *server) decodeAnswer(res *http.Response, writes bool, out any) error {
	if out == nil {
		return nil
	}

	// A proxy or another program may have answered instead of Carillon.
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if kind != "application/json" {
		return s.notCarillon(res)
	}

	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		// The request was sent, so the outcome of a write is unknown.
		return s.errorWithoutAnswer(err, writes)
	}

	if err := json.Unmarshal(body, out); err != nil {
		e := s.notCarillon(res)
		e.Message += fmt.Sprintf(" (%v)", err)
		return e
	}

	return nil
}

// sendCall sends a call and returns a successful answer. The caller must close its body. Any other answer is
// returned as an *Error.
func (c *connection) sendCall(ctx context.Context, k call) (res *http.Response, err error) {
	if err := c.checkReadOnly(k); err != nil {
		return nil, err
	}

	err = c.servers.try(ctx, k, func(ctx context.Context, to *server) error {
		res, err = c.sendTo(ctx, to, k)
		return err
	})

	return res, err
}

// sendTo sends a call to one server. The caller must close the body of the answer.
func (c *connection) sendTo(ctx context.Context, to *server, k call) (*http.Response, error) {
	req, err := c.newRequest(context.WithValue(ctx, serverKey{}, to), to, k)
	if err != nil {
		return nil, err
	}

	res, err := c.sendTraced(to, req)
	// The cause of ctx, such as errStalled, explains more than the error of the transport.
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return nil, to.errorWithoutAnswer(err, k.mayWrite())
	}

	if res.StatusCode/100 == 2 {
		return res, nil
	}

	defer res.Body.Close()

	body, err := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	if err != nil {
		return nil, to.errorWithoutAnswer(err, k.mayWrite())
	}

	return nil, to.errorFromBody(res, body, k.mayWrite())
}

// newRequest builds the HTTP request of a call to one server.
func (c *connection) newRequest(ctx context.Context, to *server, k call) (*http.Request, error) {
	body, kind := k.raw, k.rawType
	if k.body != nil {
		b, err := json.Marshal(k.body)
		if err != nil {
			return nil, fmt.Errorf("write %T as JSON: %w", k.body, err)
		}
		body, kind = b, "application/json"
	}

	target := to.target + k.path
	if len(k.query) > 0 {
		target += "?" + k.query.Encode()
	}

	var r io.Reader

	switch {
	case k.lines != nil:
		r, kind = k.lines, linesType
	case body != nil:
		r = bytes.NewReader(body)
	}

	req, err := http.NewRequestWithContext(ctx, k.method, target, r)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}

	for name, values := range k.header {
		req.Header[name] = values
	}

	if r != nil {
		req.Header.Set("Content-Type", kind)
	}

	if !k.stream {
		req.Header.Set("Accept", "application/json, application/problem+json")
	}

	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}

	return req, nil
}

const dryRunParam = "dry_run"

// dryRun adds the parameters of a dry run to q and returns it. ticks has the meaning of BatchOptions.Ticks.
func dryRun(q url.Values, ticks int) url.Values {
	q.Set(dryRunParam, "true")

	if ticks != 0 {
		q.Set("ticks", strconv.Itoa(max(ticks, 0)))
	}

	return q
}

// ifMatch returns the header that makes a call conditional on the revision of a task; 0 means any revision.
func ifMatch(revision int64) http.Header {
	if revision == 0 {
		return nil
	}

	return http.Header{"If-Match": {fmt.Sprintf("\"%d\"", revision)}}
}

// setIfNotEmpty sets a query parameter unless its value is empty.
func setIfNotEmpty(q url.Values, key, value string) {
	if value != "" {
		q.Set(key, value)
	}
}

// setTimes sets query parameters to times, and omits those that are zero.
func setTimes(q url.Values, times map[string]time.Time) {
	for name, at := range times {
		if !at.IsZero() {
			q.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
}

// namespacePath returns the path of a resource in a namespace, or in all namespaces if namespace is empty.
func namespacePath(namespace, resource string) (string, error) {
	if namespace == "" {
		return "/v1" + resource, nil
	}

	return "/v1/namespaces/" + namespace + resource, task.CheckName("namespace", namespace)
}

// taskPath returns the path of a task, followed by rest. It escapes the parts of rest.
func taskPath(namespace, name string, rest ...string) (string, error) {
	if err := task.CheckName("namespace", namespace); err != nil {
		return "", err
	}
	if err := task.CheckName("name", name); err != nil {
		return "", err
	}

	p := "/v1/namespaces/" + namespace + "/tasks/" + name
	for _, part := range rest {
		p += "/" + url.PathEscape(part)
	}

	return p, nil
}

// doTask sends a call whose path is that of a task, followed by rest.
func (c *connection) doTask(ctx context.Context, namespace, name string, k call, out any, rest ...string) error {
	path, err := taskPath(namespace, name, rest...)
	if err != nil {
		return err
	}

	k.path = path

	return c.doCall(ctx, k, out)
}

// getItems reads a list that is not divided into pages.
func getItems[T any](ctx context.Context, c *connection, path string) ([]T, error) {
	var l List[T]
	err := c.doCall(ctx, call{method: http.MethodGet, path: path}, &l)

	return l.Items, err
}

// Page sizes. Most lists are read in pages of pageSize items. If each page costs the server as much as the
// whole list, pages have maxPage items, which is the server's maximum.
const (
	pageSize = 1000
	maxPage  = 5000
)

// iteratePages yields the items of a list, at most limit of them (0: all), and reads each page when it is
// needed. An error ends the list. If pathErr is not nil, it is the only element.
func iteratePages[T any](ctx context.Context, c *connection, path string, q url.Values, itemsPerPage, limit int, pathErr error) iter.Seq2[T, error] {
	return iterateQuery[T](ctx, c, path, q, itemsPerPage, limit, nil, pathErr)
}

// iterateQuery is iteratePages for a list that the owners of shards may answer. info, if not nil, is called with what
// each page says about that.
func iterateQuery[T any](ctx context.Context, c *connection, path string, q url.Values, itemsPerPage, limit int, info func(ListInfo), pathErr error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T

		if pathErr != nil {
			yield(none, pathErr)
			return
		}

		for seen := 0; ; {
			size := itemsPerPage
			if limit > 0 {
				size = min(size, limit-seen)
			}

			q.Set("limit", strconv.Itoa(size))

			var page QueryList[T]
			if err := c.doCall(ctx, call{method: http.MethodGet, path: path, query: q}, &page); err != nil {
				yield(none, err)
				return
			}

			if info != nil {
				info(page.ListInfo)
			}

			for _, item := range page.Items {
				if seen++; !yield(item, nil) || seen == limit {
					return
				}
			}

			// Only the last page has no cursor. Other pages may have fewer items than their limit.
			if page.Next == "" {
				return
			}

			q.Set("page", page.Next)
		}
	}
}

// collectItems returns all items of an iterator, or the error that ended it.
func collectItems[T any](items iter.Seq2[T, error]) ([]T, error) {
	all := []T{}
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		all = append(all, item)
	}

	return all, nil
}

// CodeReadOnly is the code of the error of a call that was not sent, because it would change something and
// Config.ReadOnly is set.
const CodeReadOnly = "read_only"

// Sent describes a call for Config.Trace. It contains no secrets.
type Sent struct {
	Method string
	Path   string        // including the query
	Status int           // of the answer; 0 if there was no answer
	Took   time.Duration // until the beginning of the answer
	Err    error         // why there was no answer
}

// isChange reports whether a call is intended to change something. A dry run is not.
func (c call) isChange() bool {
	return c.mayWrite() && c.query.Get("dry_run") != "true"
}

// checkReadOnly returns an error for a call that changes something if the client is read-only.
func (c *connection) checkReadOnly(k call) error {
	if c.readOnly && k.isChange() {
		return &Error{Code: CodeReadOnly, Message: k.method + " " + k.path + " would change something, but this client is read-only"}
	}
	return nil
}

// sendTraced sends a request to one server and reports it to Config.Trace.
func (c *connection) sendTraced(to *server, req *http.Request) (*http.Response, error) {
	if c.trace == nil {
		return to.http.Do(req)
	}

	sent := Sent{Method: req.Method, Path: req.URL.RequestURI()}
	began := time.Now()
	res, err := to.http.Do(req)
	sent.Took = time.Since(began)
	if sent.Err = err; err == nil {
		sent.Status = res.StatusCode
	}

	c.trace(sent)

	return res, err
}

// IdempotencyKeyHeader is the header that names a request, so that sending it again does not repeat what it does.
const IdempotencyKeyHeader = "Idempotency-Key"

// MaxIdempotencyKey is the maximum length of an idempotency key in bytes.
const MaxIdempotencyKey = 255

// CheckIdempotencyKey returns task.ErrInvalid for text that cannot be an idempotency key.
func CheckIdempotencyKey(key string) error {
	if key == "" || len(key) > MaxIdempotencyKey {
		return task.Invalid(task.CodeBadValue, IdempotencyKeyHeader, "has %d bytes; 1 to %d are allowed", len(key), MaxIdempotencyKey)
	}

	for _, r := range key {
		if r < ' ' || r > '~' {
			return task.Invalid(task.CodeBadValue, IdempotencyKeyHeader, "%s contains %q; only printable ASCII characters are allowed", task.Quote(key), r)
		}
	}

	return nil
}

const (
	// repeats is how often a call with an idempotency key is sent at most, if the answers to the former ones are lost.
	repeats = 3
	// repeatPause is the pause before the second time. It doubles each time.
	repeatPause = 300 * time.Millisecond
)

// doOnce is callOnce for a call whose path is that of a task, followed by rest.
func (c *connection) doOnce(ctx context.Context, namespace, name, key string, k call, out any, rest ...string) (err error) {
	if k.path, err = taskPath(namespace, name, rest...); err != nil {
		return err
	}

	return c.callOnce(ctx, key, k, out)
}

// callOnce sends a call with an idempotency key; "" means a random one. While the outcome is unknown, it sends the call again
// with the same key, so that nothing is done twice. All of this happens within the timeout of one call.
func (c *connection) callOnce(ctx context.Context, key string, k call, out any) error {
	if key == "" {
		key = task.NewUID()
	}
	if err := CheckIdempotencyKey(key); err != nil {
		return err
	}

	if k.header == nil {
		k.header = http.Header{}
	}
	k.header.Set(IdempotencyKeyHeader, key)

	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()

	pause := repeatPause
	for i := 1; ; i++ {
		err := c.doCall(ctx, k, out)
		if i == repeats || !errors.Is(err, task.ErrUnknown) {
			return err
		}

		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause *= 2
	}
}
