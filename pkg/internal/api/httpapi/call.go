// Package httpapi contains what the handlers of all resources share: an Operation with its typed parameters,
// the Call of an operation by a Caller, the Answer, and the Failure that a caller receives as a problem (RFC
// 9457).
//
// It guarantees that a handler receives only requests that were understood completely. A header, a parameter or
// a body that the operation does not support is rejected. Each parameter is declared once, by a field of a
// struct (see Query). Package api routes, authenticates and describes; this package does not. It touches no
// keys.
package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Call is a request whose parameters, conditions and body have been checked against its operation.
type Call struct {
	Writer         http.ResponseWriter
	Request        *http.Request
	Operation      *Operation
	query          url.Values
	reader         RequestReader
	Body           []byte                      // nil if there is none, or if it is streamed
	IfMatch        int64                       // from If-Match: the required revision; 0 if there is none
	IfNoneMatch    bool                        // If-None-Match: *
	IdempotencyKey string                      // Idempotency-Key; "" if there is none
	serve          func(*Call) (Answer, error) // the handler with its parsed parameters
}

// Answer is the result of a handler. The zero value means that the handler has written the answer itself.
type Answer struct {
	Status int
	Body   any
	Header http.Header
}

// RequestReader reads and checks requests. It is safe for concurrent use.
type RequestReader struct {
	ref   func(namespace, name string) record.Ref // maps a task to its shard
	pages pageSigner
}

// NewRequestReader returns a reader of requests to the cluster with this id. Page tokens are valid only for
// this cluster. ref maps a task to its shard.
func NewRequestReader(ref func(namespace, name string) record.Ref, cluster string) RequestReader {
	return RequestReader{ref: ref, pages: newPageSigner(cluster)}
}

// Read checks a request against its operation and reads its body. It returns a failure before the handler sees
// anything that it does not support.
func (rr RequestReader) Read(w http.ResponseWriter, r *http.Request, rt *Operation) (*Call, error) {
	c := &Call{Writer: w, Request: r, Operation: rt, reader: rr}
	var err error
	if c.query, err = rt.Handler.query.readQuery(r); err != nil {
		return nil, err
	}
	if c.serve, err = rt.Handler.prepare(c.query); err != nil {
		return nil, err
	}
	if err := c.readConditions(); err != nil {
		return nil, err
	}
	if c.Body, err = readBody(w, r, rt); err != nil {
		return nil, err
	}

	return c, nil
}

// readConditions parses If-Match, If-None-Match and Idempotency-Key. A condition that the operation does not support is
// rejected, because ignoring it would write what the caller wanted to prevent.
func (c *Call) readConditions() error {
	match, none := c.Request.Header.Values("If-Match"), c.Request.Header.Values("If-None-Match")
	once := c.Request.Header.Values(client.IdempotencyKeyHeader)
	reads := c.Request.Method == http.MethodGet || c.Request.Method == http.MethodHead
	if reads {
		return nil
	}
	if len(match) > 0 && !c.Operation.Conditional {
		return task.Invalid(task.CodeBadValue, "If-Match", "this route does not accept a revision")
	}
	if len(none) > 0 && !c.Operation.Creates {
		return task.Invalid(task.CodeBadValue, "If-None-Match", "this route does not accept this header")
	}
	if len(once) > 0 && !c.Operation.Idempotent {
		return task.Invalid(task.CodeBadValue, client.IdempotencyKeyHeader, "this route does not accept this header")
	}

	if len(once) > 0 {
		if len(once) > 1 {
			return task.Invalid(task.CodeBadValue, client.IdempotencyKeyHeader, "occurs %d times; send it once", len(once))
		}
		if err := client.CheckIdempotencyKey(once[0]); err != nil {
			return err
		}
		c.IdempotencyKey = once[0]
	}

	if len(none) > 0 {
		if len(none) > 1 || strings.TrimSpace(none[0]) != "*" || len(match) > 0 {
			return task.Invalid(task.CodeBadValue, "If-None-Match", "must be *, and cannot be combined with If-Match")
		}
		c.IfNoneMatch = true
	}

	if len(match) > 0 {
		rev, ok := parseETag(match[0])
		if !ok || len(match) > 1 {
			return task.Invalid(task.CodeBadValue, "If-Match", "%s is not one revision in quotes, such as \"42\"", task.Quote(strings.Join(match, ", ")))
		}
		c.IfMatch = rev
	}

	return nil
}

// parseETag parses a revision in quotes, as ETag formats it, also that of a compressed answer.
func parseETag(s string) (int64, bool) {
	s, open := strings.CutPrefix(strings.TrimSpace(s), `"`)
	s, closed := strings.CutSuffix(s, `"`)
	s = strings.TrimSuffix(s, GzipSuffix)
	rev, err := strconv.ParseInt(s, 10, 64)
	return rev, open && closed && err == nil && rev > 0 && s[0] != '+' && s[0] != '0'
}

// ETag formats a revision for the header ETag.
func ETag(revision int64) string { return strconv.Quote(strconv.FormatInt(revision, 10)) }

// GzipSuffix ends the ETag of an answer that is compressed. An ETag stands for the bytes of an answer, so those of the plain and
// the compressed answer have to differ (RFC 9110, 8.8.3.3). A caller may send either of them.
const GzipSuffix = "-gzip"

// GzipETag returns the ETag of the compressed answer.
func GzipETag(tag string) string { return strings.TrimSuffix(tag, `"`) + GzipSuffix + `"` }

// MatchETag returns the ETag in If-None-Match of a request by which the caller has the answer already: the given one, or that of
// the compressed answer. It returns "" if there is none. Tags are compared weakly, as RFC 9110 requires for this header.
func MatchETag(r *http.Request, tag string) string {
	if tag == "" {
		return ""
	}

	for _, value := range r.Header.Values("If-None-Match") {
		for _, one := range strings.Split(value, ",") {
			one = strings.TrimPrefix(strings.TrimSpace(one), "W/")
			if one == tag || one == GzipETag(tag) {
				return one
			}
			if one == "*" {
				return tag
			}
		}
	}

	return ""
}

// readBody reads the body if the operation has one, and rejects it otherwise.
func readBody(w http.ResponseWriter, r *http.Request, rt *Operation) ([]byte, error) {
	if rt.Body != nil && rt.Body.Streamed {
		return nil, checkType(r, rt.Body)
	}

	b, err := readAll(w, r)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, Fail(http.StatusRequestEntityTooLarge, client.CodeTooLarge, "the body is larger than %d bytes", MaxBody)
	case err != nil:
		return nil, Fail(http.StatusBadRequest, task.CodeBadJSON, "the body ends too early")
	case len(b) == 0 && (rt.Body == nil || rt.Body.Optional):
		return nil, nil
	case rt.Body == nil:
		return nil, Fail(http.StatusBadRequest, task.CodeBadJSON, "this route accepts no body")
	}

	if err := checkType(r, rt.Body); err != nil {
		return nil, err
	}
	if !utf8.Valid(b) {
		return nil, Fail(http.StatusBadRequest, task.CodeBadJSON, "the body is not UTF-8")
	}

	return b, nil
}

// readAll reads a body, which must arrive within RequestTimeout. It removes the deadline after the complete
// body, because net/http would otherwise treat it as the end of the connection while the request is served.
// After an error the deadline stays, so that the server does not wait for the rest of the body.
func readAll(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Body == http.NoBody {
		return nil, nil
	}

	deadline := http.NewResponseController(w) // errors are ignored: not every http.ResponseWriter supports deadlines
	_ = deadline.SetReadDeadline(time.Now().Add(RequestTimeout))

	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if err == nil {
		_ = deadline.SetReadDeadline(time.Time{})
	}

	return b, err
}

// checkType rejects bodies of a type, an encoding or a character set that the operation does not support.
func checkType(r *http.Request, b *Body) error {
	values := r.Header.Values("Content-Type")
	kind, params, err := mime.ParseMediaType(strings.Join(values, ","))
	charset, has := params["charset"]

	if encoding := r.Header.Get("Content-Encoding"); encoding != "" {
		return Fail(http.StatusUnsupportedMediaType, client.CodeContentType, "the Content-Encoding is %s; this route accepts only an uncompressed body",
			task.Quote(encoding)).WithField("Content-Encoding")
	}

	if err != nil || len(values) != 1 || !slices.Contains(b.Types, kind) || has && !strings.EqualFold(charset, "utf-8") {
		return Fail(http.StatusUnsupportedMediaType, client.CodeContentType, "the Content-Type is %s; this route accepts %s, in UTF-8 and uncompressed",
			task.Quote(strings.Join(values, ", ")), strings.Join(b.Types, " or ")).WithField("Content-Type")
	}

	return nil
}

// Decode decodes the body into v and rejects unknown fields. It leaves v unchanged if the operation's optional
// body is absent.
func (c *Call) Decode(v any) error {
	if c.Body == nil {
		return nil
	}

	err := task.DecodeStrict(c.Body, v)
	if err != nil {
		err = bodyError{error: err, of: reflect.TypeOf(v)}
	}

	return err
}

// bodyError is an error of a body, with the type of the body: keys of maps may contain dots, so the type decides which pointers the
// problems have.
type bodyError struct {
	error
	of reflect.Type
}

// Unwrap returns the error without the type.
func (b bodyError) Unwrap() error { return b.error }

// CheckTime rejects times outside the years that schedules support.
func CheckTime(field string, t task.Time) error {
	if t.Year() < 2000 || t.Year() > 2100 {
		return task.Invalid(task.CodeBadTime, field, "%s is not between the years 2000 and 2100", t.Format(time.RFC3339))
	}
	return nil
}

// Namespace returns the namespace in the path after checking it.
func (c *Call) Namespace() (string, error) {
	ns := c.Request.PathValue("ns")
	return ns, task.CheckName("namespace", ns)
}

// Ref returns the task in the path after checking it.
func (c *Call) Ref() (record.Ref, error) {
	ns, err := c.Namespace()
	if err != nil {
		return record.Ref{}, err
	}

	name := c.Request.PathValue("name")
	if err := task.CheckName("name", name); err != nil {
		return record.Ref{}, err
	}

	return c.reader.ref(ns, name), nil
}

// Serve calls the operation's handler.
func (c *Call) Serve() (Answer, error) { return c.serve(c) }

// Context returns the request's context.
func (c *Call) Context() context.Context { return c.Request.Context() }

// Rights returns what the caller may do.
func (c *Call) Rights() *Rights { return RightsOf(c.Request.Context()) }

// Become makes a public operation one of a caller whose identity its handler has verified.
func (c *Call) Become(caller Caller, j *Judge) {
	ctx := WithCaller(c.Request.Context(), caller)
	c.Request = c.Request.WithContext(WithRights(ctx, j.RightsOf(caller, c.Operation.ID)))
}

// Actor returns the caller as records and events contain it.
func (c *Call) Actor() *task.Actor { return CallerOf(c.Request.Context()).Actor() }

// Idempotency identifies a request with an Idempotency-Key, which does something to an object: a namespace, or a task with its
// uid. content is what it requests. It returns the zero value if the request has no key.
//
// A key belongs to its caller and to the object: equal keys of other callers, and for a task that was deleted and created again,
// are different keys. etcd stores only digests, because senders may use keys that are secret.
func (c *Call) Idempotency(operation string, content any, object ...string) (store.Idempotency, error) {
	if c.IdempotencyKey == "" {
		return store.Idempotency{}, nil
	}

	key, err := digest(slices.Concat([]string{CallerOf(c.Context()).Who}, object, []string{c.IdempotencyKey}))
	if err != nil {
		return store.Idempotency{}, err
	}
	request, err := digest([]any{operation, content})

	return store.Idempotency{Key: key, Request: request}, err
}

// KeyReused is the failure of a request whose Idempotency-Key was used for a different request for an object.
func (c *Call) KeyReused(object string) *Failure {
	return Fail(http.StatusUnprocessableEntity, client.CodeKeyReused, "%s was used for a different request for %s", task.Quote(c.IdempotencyKey), object).
		WithField(client.IdempotencyKeyHeader).WithHint("use a new key for each new request")
}

// digest returns a digest of a value. JSON separates the parts of a list, and sorts the keys of maps.
func digest(value any) (string, error) {
	b, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("write a digest: %w", err)
	}
	sum := sha256.Sum256(b)

	return hex.EncodeToString(sum[:16]), nil
}

// CheckIfMatch returns task.ErrStale if the request requires another revision.
func (c *Call) CheckIfMatch(ref record.Ref, revision int64) error {
	if c.IfMatch != 0 && c.IfMatch != revision {
		return fmt.Errorf("task %s is at revision %d: %w, %d", ref, revision, task.ErrStale, c.IfMatch)
	}
	return nil
}

const (
	// RequestTimeout limits how long a request may take, except for streams.
	RequestTimeout = 15 * time.Second
	// MaxWait is how long a request may ask to wait for something to happen, in addition to RequestTimeout.
	MaxWait = time.Minute
	// MaxBody is the maximum size of a body in bytes.
	MaxBody = 1 << 20
)

// RunID returns the id of a run in the path, or a prefix of an id, after checking it.
func (c *Call) RunID() (string, error) {
	id := c.Request.PathValue("id")
	ok := !strings.ContainsFunc(id, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '.' && r != '-'
	})

	if id == "" || len(id) > task.MaxName || !ok {
		return "", task.Invalid(task.CodeBadValue, "run", "%s is not a run id or a prefix of one", task.Quote(id))
	}

	return id, nil
}

// RefAndRunID returns the task and the run id in the path after checking them.
func (c *Call) RefAndRunID() (record.Ref, string, error) {
	ref, err := c.Ref()
	if err != nil {
		return ref, "", err
	}

	id, err := c.RunID()
	return ref, id, err
}

// Caller identifies who sent a request.
type Caller struct {
	Who         string // the subject: user:NAME, service:NAME, cert:NAME or unix:USER
	Token       string // the id of the token; "" if there was none
	Certificate string // the name of the client certificate, if it was verified
	Address     string // the address that the request came from, without the port; "" over a unix socket
	Forwarder   string // the node that forwarded the request for this caller; "" if none did
}

// Subject returns the caller as access records know it. Every user of the host who is trusted without a token has the
// rights of root there. A session of root has them only while its record exists and has not ended.
func (c Caller) Subject() access.Caller {
	if c.IsHostUser() {
		return access.Caller{Subject: access.RootSubject}
	}
	return access.Caller{Subject: c.Who, Token: c.Token}
}

// IsHostUser reports whether the caller is a user of the node's host over its unix socket, without any other credential: its
// rights do not depend on access records. It is false for a session of root in a browser.
func (c Caller) IsHostUser() bool {
	return c.Token == "" && strings.HasPrefix(c.Who, access.KindUnix+":")
}

// IsHostRoot reports whether the caller is root over the unix socket of the node, without any other credential.
func (c Caller) IsHostRoot() bool { return c.Token == "" && c.Who == access.KindUnix+":uid=0" }

// Name returns the subject as messages show it.
func (c Caller) Name() string { return task.ActorText(c.Who) }

// whoKey is the context key of a Caller.
type whoKey struct{}

// WithCaller returns the context of a request after its caller was authenticated.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, whoKey{}, c)
}

// CallerOf returns the authenticated caller of a request. It is the zero value for public operations.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(whoKey{}).(Caller)
	return c
}

// Actor returns the caller as records and events contain it. A subject may have several tokens, so the id tells which one was
// used (G26). It is not secret: it is the token's key in etcd.
func (c Caller) Actor() *task.Actor {
	return &task.Actor{Subject: recordedName(c.Who, task.MaxSubjectLength), Token: c.Token, Certificate: recordedName(c.Certificate, maxCertificateName)}
}

// maxCertificateName is the maximum number of bytes of a certificate's name in a record.
const maxCertificateName = 128

// recordedName returns a name in the form of records: UTF-8 of limited length. Subjects with rights are never longer.
func recordedName(s string, most int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}

	return s
}

// Clock is a wall clock.
type Clock func() time.Time

// Stamp returns the current time in the format of records.
func (c Clock) Stamp() task.Time { return task.At(c()) }

// maxConflicts is the maximum number of attempts to make a change that other writers interfere with. Next to a
// writer that writes all the time, half of the attempts fail. Sixteen attempts wait 0.6 s on average.
const maxConflicts = 16

// RetryConflict calls f until it returns anything but task.ErrConflict, or until the attempts are used up. A
// conflict is definite: f has written nothing, and must read the current state again. RetryConflict never
// repeats a write of unknown outcome.
func RetryConflict(ctx context.Context, f func() error) error {
	for i := 1; ; i++ {
		err := f()
		if i == maxConflicts || !errors.Is(err, task.ErrConflict) {
			return err
		}

		if !clock.Sleep(ctx, rand.N(time.Duration(i)*10*time.Millisecond)) {
			return err
		}
	}
}

// StateList is a parameter with states of runs, separated by commas; nil means any state.
type StateList []task.State

// UnmarshalText parses states that are separated by commas.
func (l *StateList) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return nil
	}

	for name := range strings.SplitSeq(string(text), ",") {
		s := task.State(strings.TrimSpace(name))
		if !s.Known() {
			return task.NoneOf(task.CodeBadValue, "", name, task.StateNames()...)
		}
		*l = append(*l, s)
	}

	return nil
}
