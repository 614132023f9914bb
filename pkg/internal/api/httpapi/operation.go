package httpapi

import (
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

// Operation describes one operation of the API: its parameters, its answers, and its handler. The OpenAPI
// document is generated from it.
type Operation struct {
	ID, Method, Path string // Path is a pattern of http.ServeMux
	Tag, Summary     string
	Description      string
	Body             *Body        // nil: a body is rejected
	Conditional      bool         // supports If-Match
	Creates          bool         // supports If-None-Match: *
	Idempotent       bool         // supports Idempotency-Key
	Writes           bool         // changes something in etcd
	Forwarded        bool         // other nodes may request it on behalf of their callers
	Recovers         bool         // may write while Config.Writable forbids other writes
	Status           int          // the status of a successful answer
	Answer           reflect.Type // nil: no body, or plain text if it streams
	AnswerType       string       // "": TypeJSON, or text/plain without an Answer
	DryAnswer        reflect.Type // the body of a dry run that is answered with 200, if Status differs
	Tagged           bool         // the answer has an ETag
	Revalidated      bool         // the ETag identifies the whole answer, so that If-None-Match is answered with 304
	Errors           []int        // statuses in addition to those that Problems derives
	Public           bool         // needs no token
	TakesLink        bool         // accepts a login link as its credential; no other operation does
	// Verb and Kind are the least that a caller needs, in the namespace of the path if there is one. What a handler
	// changes may need more: it calls Rights.Require. Without a verb, every known caller may call the operation; a list
	// of several namespaces then contains only what the caller may read.
	Verb    access.Verb
	Kind    access.Kind
	Streams bool         // the handler writes the answer itself, without RequestTimeout
	Waits   bool         // the handler waits up to MaxWait for something to happen: see TimeLimit
	Events  reflect.Type // the type of each message, if the operation also offers server-sent events
	Handler Handler
}

// Body describes the body of an operation. Either Schema or Of is set.
type Body struct {
	Types    []string
	Schema   string       // the name of the schema component
	Of       reflect.Type // the Go type
	Optional bool
	Streamed bool          // the handler reads it while it arrives
	Idle     time.Duration // how long the handler of a streamed body waits for more of it
	Doc      string
}

// The media types of bodies and answers.
const (
	TypeJSON        = "application/json"
	TypeMergePatch  = "application/merge-patch+json"
	TypeLines       = "application/x-ndjson"
	TypeEventStream = "text/event-stream"
	TypeZstd        = "application/zstd"
)

// The beginnings of paths: in a namespace, of a task, and of a run of a task.
const (
	InNamespace = "/v1/namespaces/{ns}"
	OfTask      = InNamespace + "/tasks/{name}"
	OfRun       = OfTask + "/runs/{id}"
)

// Problems returns the statuses with which an operation may fail.
func (o *Operation) Problems() []int {
	list := slices.Clone(o.Errors)

	if o.Public {
		return list
	}

	list = append(list, 400, 401, 403, 422, 500, 503)
	if len(inPath.FindString(o.Path)) > 0 {
		list = append(list, 404)
	}

	if o.Body != nil {
		list = append(list, 413, 415)
	}

	if o.Conditional {
		list = append(list, 412)
	}

	if o.Revalidated {
		list = append(list, 304)
	}

	if o.Writes {
		list = append(list, 504, 507)
	}

	slices.Sort(list)

	return slices.Compact(list)
}

// PathParams returns the names of the parameters in the path.
func (o *Operation) PathParams() []string {
	var names []string
	for _, m := range inPath.FindAllStringSubmatch(o.Path, -1) {
		names = append(names, m[1])
	}
	return names
}

// QueryParams describes the query parameters for the OpenAPI document.
func (o *Operation) QueryParams(schemas huma.Registry) []*huma.Param {
	return o.Handler.query.describeParameters(schemas)
}

// inPath matches a parameter in a path.
var inPath = regexp.MustCompile(`\{(\w+)\}`)

// TimeLimit returns how long a request of the operation may take, including all that its handler reads. Only an operation that Waits
// may take longer than RequestTimeout, by the time that the request asks to wait.
func (o *Operation) TimeLimit(r *http.Request) time.Duration {
	if !o.Waits {
		return RequestTimeout
	}

	// A wait that is not valid is refused when the parameters are read.
	wait, err := task.ParseDuration("wait", r.URL.Query().Get("wait"))
	if err != nil || wait < 0 || wait.Std() > MaxWait {
		wait = 0
	}

	return RequestTimeout + wait.Std()
}
