package httpaction

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-faster/jx"

	"github.com/carillonhq/carillon/executor/mask"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	tailBytes     = 4 << 10 // of the stored response that the result contains
	keptOfSuccess = 256     // bytes of the response of a success that its record contains
	maxRetryAfter = 24 * time.Hour
)

// expectation is which responses count as success, and what is read from them.
type expectation struct {
	status   []string       // codes and classes; empty: 2xx
	body     *regexp.Regexp // nil: not set
	results  *pointerTree   // nil: none
	pointers map[string]string
	limit    task.Size // of the body
	keep     bool      // the body of a success is stored, too
}

// read compiles the rules of an action. An error is a *failure.
func (e *expectation) read(h *task.HTTP) error {
	e.status, e.pointers, e.keep = h.Expect.Status, h.Results, h.Output == task.HTTPOutputKeep
	e.limit = min(cmp.Or(h.Limit.Body, task.DefaultHTTPBody), task.MaxHTTPBody)

	if h.Expect.Body != "" {
		re, err := regexp.Compile(h.Expect.Body)
		if err != nil {
			return &failure{kind: kindHost, message: "action.http.expect.body is not a valid regular expression"}
		}
		e.body = re
	}

	if len(h.Results) > 0 {
		t, err := newPointerTree(h.Results)
		if err != nil {
			return &failure{kind: kindHost, message: "action.http.results: " + err.Error()}
		}
		e.results = t
	}

	return nil
}

// matchesStatus reports whether a status code counts as success.
func (e *expectation) matchesStatus(code int) bool {
	if len(e.status) == 0 {
		return code >= 200 && code < 300
	}

	text := strconv.Itoa(code)
	return slices.ContainsFunc(e.status, func(p string) bool {
		class, ok := strings.CutSuffix(p, "xx")
		return p == text || ok && class == text[:1]
	})
}

// needsBody reports whether the body decides about success, or has results.
func (e *expectation) needsBody() bool { return e.body != nil || e.results != nil }

// statusText returns the status for people. The target's own words are not shown.
func statusText(code int) string {
	return strings.TrimSpace(fmt.Sprintf("HTTP %d %s", code, http.StatusText(code)))
}

// retryAfter returns how long a response asks to wait. asks is false if it does not ask.
func retryAfter(status int, header http.Header, now time.Time) (wait time.Duration, asks bool) {
	value := strings.TrimSpace(header.Get("Retry-After"))
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable || value == "" {
		return 0, false
	}

	if n, err := strconv.ParseUint(value, 10, 63); err == nil {
		return time.Duration(min(n, uint64(maxRetryAfter/time.Second))) * time.Second, true
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter), true
	}

	return 0, false
}

// received is a complete response, or as much of it as its limit allows.
type received struct {
	status   int
	header   http.Header
	bytes    int64       // decompressed
	tooLarge bool        // there was more
	body     *bodyBuffer // nil if the body is not judged
}

// errKeepBody means that the node could not keep a response for its judgement.
var errKeepBody = errors.New("cannot keep the response")

// readBody reads a response to its end or its limit into to. It counts decompressed bytes and stops reading at the
// limit, so that a small compressed response cannot keep the node busy.
func readBody(from io.Reader, limit task.Size, to io.Writer) (n int64, tooLarge bool, err error) {
	buf := readBuffers.Get().(*[]byte)
	defer readBuffers.Put(buf)

	for {
		k, err := from.Read(*buf)
		if over := n + int64(k) - int64(limit); over > 0 {
			k, tooLarge = k-int(over), true
		}

		n += int64(k)
		if _, werr := to.Write((*buf)[:k]); werr != nil {
			return n, false, fmt.Errorf("%w: %w", errKeepBody, werr)
		}

		switch {
		case tooLarge, err == io.EOF:
			return n, tooLarge, nil
		case err != nil:
			return n, false, err
		}
	}
}

// readBuffers holds buffers for responses.
var readBuffers = sync.Pool{New: func() any { b := make([]byte, 8<<10); return &b }}

// verdict is what a response means for its attempt.
type verdict struct {
	succeeded bool
	message   string
	results   map[string]string
}

// judge judges a response whose body was kept if needsBody and its status say so. If ctx ends before it has finished, the
// verdict is meaningless.
func (e *expectation) judge(ctx context.Context, got *received, mask *mask.Masker) verdict {
	switch {
	case got.status == http.StatusSwitchingProtocols:
		return verdict{message: statusText(got.status) + ", which was not asked for"}
	case !e.matchesStatus(got.status):
		return verdict{message: statusText(got.status)}
	case !e.needsBody():
		return verdict{succeeded: true}
	case got.tooLarge:
		return verdict{message: fmt.Sprintf("%s, but the response is larger than limit.body (%s), so it cannot be judged", statusText(got.status), e.limit)}
	}

	if e.body != nil {
		matches, err := got.matches(ctx, e.body)
		if err != nil {
			return verdict{message: err.Error()}
		}
		if !matches {
			return verdict{message: statusText(got.status) + ", but the response does not match expect.body"}
		}
	}

	results, err := e.readResults(got, mask)
	if err != nil {
		return verdict{message: statusText(got.status) + ", but " + err.Error()}
	}

	return verdict{succeeded: true, results: results}
}

// maxQuickMatch is the length up to which a response is matched without looking at the context.
const maxQuickMatch = 4 << 10

// matches matches the body, until ctx ends. A pattern can take a second for every 64 KiB.
func (rec *received) matches(ctx context.Context, re *regexp.Regexp) (bool, error) {
	if rec.body.isSmall() && rec.body.mem.Len() <= maxQuickMatch {
		return re.Match(rec.body.mem.Bytes()), nil
	}

	r, err := rec.body.reader()
	if err != nil {
		return false, fmt.Errorf("%w: %w", errKeepBody, err)
	}

	return re.MatchReader(&endingReader{Reader: bufio.NewReader(r), ctx: ctx}), nil
}

// endingReader is a reader of a text that ends with its context.
type endingReader struct {
	*bufio.Reader
	ctx   context.Context
	count int // characters since the last look at ctx
}

// ReadRune returns io.EOF after the end of the context.
func (r *endingReader) ReadRune() (char rune, size int, err error) {
	const lookEvery = 256

	if r.count++; r.count >= lookEvery {
		r.count = 0
		if r.ctx.Err() != nil {
			return 0, 0, io.EOF
		}
	}

	return r.Reader.ReadRune()
}

// readResults reads the results from the body. Values of secrets in them are masked.
func (e *expectation) readResults(got *received, mask *mask.Masker) (map[string]string, error) {
	if e.results == nil {
		return nil, nil
	}

	r, err := got.body.reader()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errKeepBody, err)
	}

	found, err := e.results.readValues(r)
	if err != nil {
		return nil, err
	}

	size := 0
	for _, name := range slices.Sorted(maps.Keys(e.pointers)) {
		value, ok := found[name]
		if !ok {
			return nil, fmt.Errorf("the response does not contain %s (results.%s)", task.Quote(e.pointers[name]), name)
		}

		if !utf8.ValidString(value) || strings.Contains(value, "\x00") {
			value = strings.ReplaceAll(strings.ToValidUTF8(value, "\uFFFD"), "\x00", "\uFFFD")
		}

		found[name] = mask.Apply(value)
		if size += len(name) + len(found[name]); size > task.MaxResultBytes {
			return nil, errTooLarge
		}
	}

	return found, nil
}

// statusOf returns the results as an attempt reports them. The results of earlier attempts and the checkpoint stay.
func statusOf(a *process.Attempt, results map[string]string) *task.AttemptStatus {
	if len(results) == 0 && len(a.Results) == 0 {
		return nil
	}

	all := maps.Clone(a.Results)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, results)

	return &task.AttemptStatus{Namespace: a.Namespace, Task: a.Task, Run: a.ID, Attempt: a.Attempt,
		StatusReport: task.StatusReport{Results: all, Checkpoint: a.Checkpoint, BadLines: a.BadLines}}
}

// pointerTree holds the JSON pointers (RFC 6901) of an action's results. A document is read once for all of them, and
// only the values that they name are kept.
type pointerTree struct {
	names    []string                // the results whose pointer ends here
	children map[string]*pointerTree // by the decoded token
}

// newPointerTree returns the tree of pointers by the names of their results.
func newPointerTree(pointers map[string]string) (*pointerTree, error) {
	root := &pointerTree{}

	for _, name := range slices.Sorted(maps.Keys(pointers)) {
		p := pointers[name]
		if p != "" && p[0] != '/' {
			return nil, fmt.Errorf("%s is not a JSON pointer", task.Quote(p))
		}

		at := root
		for i, token := range strings.Split(p, "/") {
			if i == 0 {
				continue // before the first slash
			}

			token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
			next := at.children[token]
			if next == nil {
				next = &pointerTree{}
				if at.children == nil {
					at.children = map[string]*pointerTree{}
				}
				at.children[token] = next
			}
			at = next
		}
		at.names = append(at.names, name)
	}

	return root, nil
}

// maxValueRead is how much of a document is read for one value: more than any value that fits into MaxResultBytes takes,
// whatever its escapes and spaces are. Without a limit, a value of 16 MiB would take several times its size in memory.
const maxValueRead = 64 << 10

var (
	errNotJSON  = errors.New("the response is not valid JSON") // it is not one JSON value
	errTooLarge = fmt.Errorf("its results are larger than %d bytes", task.MaxResultBytes)
)

// valueReader is the reader of a document that limits how much is read while limited is set.
type valueReader struct {
	io.Reader
	limited  bool
	left     int  // while limited
	exceeded bool // a read was refused
}

func (r *valueReader) Read(b []byte) (int, error) {
	if !r.limited {
		return r.Reader.Read(b)
	}

	if r.left <= 0 {
		r.exceeded = true
		return 0, errTooLarge
	}

	n, err := r.Reader.Read(b[:min(len(b), r.left)])
	r.left -= n

	return n, err
}

// limit begins to limit what is read, for a value, if that has not begun for a value around it.
func (r *valueReader) limit() (end func()) {
	if r == nil || r.limited {
		return func() {}
	}

	r.limited, r.left = true, maxValueRead

	return func() { r.limited = false }
}

// readValues reads a document to its end and returns the values of the pointers by name: texts as they are, all other
// values as JSON. If a field occurs several times, its last value counts.
func (t *pointerTree) readValues(r io.Reader) (map[string]string, error) {
	found := map[string]string{}
	from := &valueReader{Reader: r}
	d := jx.Decode(from, 4<<10)

	if err := t.visit(d, from, found); err != nil {
		if from.exceeded {
			return nil, errTooLarge
		}
		return nil, errNotJSON
	}
	if d.Skip() != io.EOF {
		return nil, errNotJSON // something follows the value
	}

	return found, nil
}

// visit reads the next value of a document, which d reads from a reader; from is nil if the document is in memory.
func (t *pointerTree) visit(d *jx.Decoder, from *valueReader, found map[string]string) error {
	kind := d.Next()

	switch {
	case len(t.names) > 0:
		return t.visitNamed(d, kind, from, found)

	case kind == jx.Object && len(t.children) > 0:
		return d.ObjBytes(func(d *jx.Decoder, key []byte) error {
			if child := t.children[string(key)]; child != nil {
				return child.visit(d, from, found)
			}
			return d.Skip()
		})

	case kind == jx.Array && len(t.children) > 0:
		i := -1
		return d.Arr(func(d *jx.Decoder) error {
			i++
			if child := t.children[strconv.Itoa(i)]; child != nil {
				return child.visit(d, from, found)
			}
			return d.Skip()
		})
	}

	return d.Skip()
}

// visitNamed reads the next value, at which pointers end. Others may continue below it.
func (t *pointerTree) visitNamed(d *jx.Decoder, kind jx.Type, from *valueReader, found map[string]string) error {
	defer from.limit()()

	var text string

	if kind == jx.String {
		s, err := d.Str()
		if err != nil {
			return err
		}
		text = s
	} else {
		raw, err := d.Raw()
		if err != nil {
			return err
		}

		raw = slices.Clone(raw)
		if below := (&pointerTree{children: t.children}); len(t.children) > 0 {
			if err := below.visit(jx.DecodeBytes(raw), nil, found); err != nil {
				return err
			}
		}

		var b bytes.Buffer
		if err := json.Compact(&b, raw); err != nil {
			return err
		}
		text = b.String()
	}

	for _, name := range t.names {
		found[name] = text
	}

	return nil
}
