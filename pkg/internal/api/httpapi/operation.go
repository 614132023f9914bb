package httpapi

import (
	"reflect"
	"regexp"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// Operation is one of the API: what it takes, what it answers, and what does it. All
// of its document in OpenAPI follows from this.
type Operation struct {
	ID, Method, Path string
	Tag, Summary     string
	Description      string
	Body             *Body // nil: a body is refused
	Conditional      bool  // takes If-Match
	Creates          bool  // takes If-None-Match: *
	Writes           bool
	Forwarded        bool         // other nodes ask for it on behalf of their callers
	Recovers         bool         // may write although nothing else may
	Status           int          // of success
	Answer           reflect.Type // nil: no body, or plain text if it streams
	AnswerType       string       // "": TypeJSON
	DryAnswer        reflect.Type // of a dry run that is answered with 200, where status is another
	Tagged           bool         // answers with an ETag
	Errors           []int        // beyond those that follow from the rest
	Public           bool         // needs no token
	Streams          bool         // writes by itself, without the deadline
	Events           reflect.Type // each message, if it is a stream of events to who asks for one
	Handler          Handler
}

// Body is a body that a route takes.
type Body struct {
	Types    []string
	Schema   string       // the component that describes it, or
	Of       reflect.Type // the type that does
	Optional bool
	Streamed bool          // read by the route itself, as it arrives
	Idle     time.Duration // how long the route waits for more of a body that is streamed
	Doc      string
}

// The media types of bodies and answers.
const (
	TypeJSON        = "application/json"
	TypeMergePatch  = "application/merge-patch+json"
	TypeLines       = "application/x-ndjson"
	TypeEventStream = "text/event-stream"
)

// Where paths begin: in a namespace, at a task, at a run of it.
const (
	InNamespace = "/v1/namespaces/{ns}"
	OfTask      = InNamespace + "/tasks/{name}"
	OfRun       = OfTask + "/runs/{id}"
)

// Problems are the statuses with which a route may fail.
func (rt *Operation) Problems() []int {
	list := slices.Clone(rt.Errors)

	if rt.Public {
		return list
	}

	list = append(list, 400, 401, 403, 422, 500, 503)
	if len(inPath.FindString(rt.Path)) > 0 {
		list = append(list, 404)
	}

	if rt.Body != nil {
		list = append(list, 413, 415)
	}

	if rt.Conditional {
		list = append(list, 412)
	}

	if rt.Writes {
		list = append(list, 504, 507)
	}

	slices.Sort(list)

	return slices.Compact(list)
}

// PathParams are the names of the parameters in the path.
func (rt *Operation) PathParams() []string {
	var names []string
	for _, m := range inPath.FindAllStringSubmatch(rt.Path, -1) {
		names = append(names, m[1])
	}
	return names
}

// QueryParams describes the parameters of the query.
func (rt *Operation) QueryParams(schemas huma.Registry) []*huma.Param {
	return rt.Handler.query.describe(schemas)
}

var inPath = regexp.MustCompile(`\{(\w+)\}`)
