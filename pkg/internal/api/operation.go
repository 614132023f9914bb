package api

import (
	"reflect"
	"slices"
	"time"

	"regexp"
)

// route is one operation: what it takes, what it answers, and what does it. All
// of its document in OpenAPI follows from this.
type route struct {
	id, method, path string
	tag, summary     string
	about            string
	body             *body // nil: a body is refused
	conditional      bool  // takes If-Match
	creates          bool  // takes If-None-Match: *
	writes           bool
	forwarded        bool         // other nodes ask for it on behalf of their callers
	mends            bool         // may write although nothing else may
	status           int          // of success
	answer           reflect.Type // nil: no body, or plain text if it streams
	answerType       string       // "": jsonType
	dry              reflect.Type // of a dry run that is answered with 200, where status is another
	tagged           bool         // answers with an ETag
	errors           []int        // beyond those that follow from the rest
	open             bool         // needs no token
	stream           bool         // writes by itself, without the deadline
	events           reflect.Type // each message, if it is a stream of events to who asks for one
	handler          Handler
}

// body is a body that a route takes.
type body struct {
	types    []string
	schema   string       // the component that describes it, or
	of       reflect.Type // the type that does
	optional bool
	streamed bool          // read by the route itself, as it arrives
	idle     time.Duration // how long the route waits for more of a body that is streamed
	doc      string
}

const (
	jsonType   = "application/json"
	patchType  = "application/merge-patch+json"
	linesType  = "application/x-ndjson"
	streamType = "text/event-stream"
)

const (
	inNamespace = "/v1/namespaces/{ns}"
	ofTask      = inNamespace + "/tasks/{name}"
	ofRun       = ofTask + "/runs/{id}"
)

// problems are the statuses with which a route may fail.
func (rt *route) problems() []int {
	list := slices.Clone(rt.errors)
	if rt.open {
		return list
	}
	list = append(list, 400, 401, 403, 422, 500, 503)
	if len(inPath.FindString(rt.path)) > 0 {
		list = append(list, 404)
	}
	if rt.body != nil {
		list = append(list, 413, 415)
	}
	if rt.conditional {
		list = append(list, 412)
	}
	if rt.writes {
		list = append(list, 504, 507)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

var inPath = regexp.MustCompile(`\{(\w+)\}`)
