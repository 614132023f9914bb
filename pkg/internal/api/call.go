package api

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"fmt"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// call is a request whose parameters, conditions and body were found to be what
// its route takes.
type call struct {
	w      http.ResponseWriter
	r      *http.Request
	route  *route
	query  url.Values
	reader reader
	body   []byte
	match  int64                       // If-Match: the revision asked for; 0 if none
	fresh  bool                        // If-None-Match: *
	serve  func(*call) (answer, error) // with the parameters
}

// answer is what a handler answers; none if it wrote by itself.
type answer struct {
	status int
	body   any
	header http.Header
}

// reader reads requests.
type reader struct {
	ref   func(namespace, name string) store.Ref // says where a task lives
	pages pageSigner
}

func newReader(ref func(namespace, name string) store.Ref, cluster string) reader {
	return reader{ref: ref, pages: newPageSigner(cluster)}
}

// read checks a request against its route and reads its body.
func (rd reader) read(w http.ResponseWriter, r *http.Request, rt *route) (*call, error) {
	c := &call{w: w, r: r, route: rt, reader: rd}
	var err error
	if c.query, err = rt.handler.query.readQuery(r); err != nil {
		return nil, err
	}
	if c.serve, err = rt.handler.prepare(c.query); err != nil {
		return nil, err
	}
	if err := c.readConditions(); err != nil {
		return nil, err
	}
	if c.body, err = readBody(w, r, rt); err != nil {
		return nil, err
	}
	return c, nil
}

// readConditions parses If-Match and If-None-Match. A condition that the route
// does not know is refused: passing over it would do what was not asked for.
func (c *call) readConditions() error {
	match, none := c.r.Header.Values("If-Match"), c.r.Header.Values("If-None-Match")
	reads := c.r.Method == http.MethodGet || c.r.Method == http.MethodHead
	if reads {
		return nil
	}
	if len(match) > 0 && !c.route.conditional {
		return task.Invalid(task.CodeBadValue, "If-Match", "this route does not take a revision")
	}
	if len(none) > 0 && !c.route.creates {
		return task.Invalid(task.CodeBadValue, "If-None-Match", "this route does not take it")
	}
	if len(none) > 0 {
		if len(none) > 1 || strings.TrimSpace(none[0]) != "*" || len(match) > 0 {
			return task.Invalid(task.CodeBadValue, "If-None-Match", "only * is possible, and no If-Match beside it")
		}
		c.fresh = true
	}
	if len(match) > 0 {
		rev, ok := parseETag(match[0])
		if !ok || len(match) > 1 {
			return task.Invalid(task.CodeBadValue, "If-Match", "%s is not one revision in quotes, such as \"42\"", task.Quote(strings.Join(match, ", ")))
		}
		c.match = rev
	}
	return nil
}

func parseETag(s string) (int64, bool) {
	s, open := strings.CutPrefix(strings.TrimSpace(s), `"`)
	s, closed := strings.CutSuffix(s, `"`)
	rev, err := strconv.ParseInt(s, 10, 64)
	return rev, open && closed && err == nil && rev > 0 && s[0] != '+' && s[0] != '0'
}

func etag(revision int64) string { return strconv.Quote(strconv.FormatInt(revision, 10)) }

// readBody reads a body that the route takes, and refuses one that it does not.
func readBody(w http.ResponseWriter, r *http.Request, rt *route) ([]byte, error) {
	if rt.body != nil && rt.body.streamed {
		return nil, checkType(r, rt.body)
	}
	b, err := readAll(w, r)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, fail(http.StatusRequestEntityTooLarge, client.CodeTooLarge, "the body is larger than %d bytes", maxBody)
	case err != nil:
		return nil, fail(http.StatusBadRequest, task.CodeBadJSON, "the body ends too early")
	case len(b) == 0 && (rt.body == nil || rt.body.optional):
		return nil, nil
	case rt.body == nil:
		return nil, fail(http.StatusBadRequest, task.CodeBadJSON, "this route takes no body")
	}
	if err := checkType(r, rt.body); err != nil {
		return nil, err
	}
	if !utf8.Valid(b) {
		return nil, fail(http.StatusBadRequest, task.CodeBadJSON, "the body is not UTF-8")
	}
	return b, nil
}

// readAll reads a body that comes within requestTimeout. The deadline is lifted once
// all of it is there: net/http would take it for the end of the connection while the
// request is served. Otherwise it stays: what is left of the body is not waited for.
func readAll(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Body == http.NoBody {
		return nil, nil
	}
	deadline := http.NewResponseController(w) // not every writer has one
	_ = deadline.SetReadDeadline(time.Now().Add(requestTimeout))

	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		_ = deadline.SetReadDeadline(time.Time{})
	}
	return b, err
}

func checkType(r *http.Request, b *body) error {
	values := r.Header.Values("Content-Type")
	kind, params, err := mime.ParseMediaType(strings.Join(values, ","))
	charset, has := params["charset"]
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" {
		return fail(http.StatusUnsupportedMediaType, client.CodeContentType, "the Content-Encoding is %s; this route takes a body as it is, not compressed",
			task.Quote(encoding)).withField("Content-Encoding")
	}
	if err != nil || len(values) != 1 || !slices.Contains(b.types, kind) || has && !strings.EqualFold(charset, "utf-8") {
		return fail(http.StatusUnsupportedMediaType, client.CodeContentType, "the Content-Type is %s; this route takes %s, in UTF-8, not compressed",
			task.Quote(strings.Join(values, ", ")), strings.Join(b.types, " or ")).withField("Content-Type")
	}
	return nil
}

// decode reads the body into v, strictly. An optional body that is absent
// leaves v as it is.
func (c *call) decode(v any) error {
	if c.body == nil {
		return nil
	}
	return task.DecodeStrict(c.body, v)
}

// checkTime refuses times outside the years that schedules know.
func checkTime(field string, t task.Time) error {
	if t.Year() < 2000 || t.Year() > 2100 {
		return task.Invalid(task.CodeBadTime, field, "%s is not between the years 2000 and 2100", t.Format(time.RFC3339))
	}
	return nil
}

// namespace is the namespace in the path, checked.
func (c *call) namespace() (string, error) {
	ns := c.r.PathValue("ns")
	return ns, task.CheckName("namespace", ns)
}

// ref is the task in the path, checked.
func (c *call) ref() (store.Ref, error) {
	ns, err := c.namespace()
	if err != nil {
		return store.Ref{}, err
	}
	name := c.r.PathValue("name")
	if err := task.CheckName("name", name); err != nil {
		return store.Ref{}, err
	}
	return c.reader.ref(ns, name), nil
}

// ctx is the request's context.
func (c *call) ctx() context.Context { return c.r.Context() }

// actor returns who made the request, as records and events name them.
func (c *call) actor() string { return callerOf(c.r.Context()).actor() }

// matches is task.ErrStale if the request asked for another revision.
func (c *call) matches(ref store.Ref, revision int64) error {
	if c.match != 0 && c.match != revision {
		return fmt.Errorf("task %s is at revision %d: %w, %d", ref, revision, task.ErrStale, c.match)
	}
	return nil
}

const (
	// requestTimeout ends what a request does, but for the streaming of logs.
	requestTimeout = 15 * time.Second
	maxBody        = 1 << 20
)
