package events

import (
	"context"
	"net/http"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve events.
type Handlers struct {
	Store *store.Store
	Node  string // this one's name
	// PageQuiet is how long nothing is told until a page ends without all of what has happened.
	PageQuiet time.Duration
	// Refused reports whether the caller of a request that goes on is not let in any more.
	Refused   func(ctx context.Context, r *http.Request) bool
	Ends      <-chan struct{} // closed when the node stops answering; may be nil
	Heartbeat time.Duration   // how often a stream gives a sign of life
	Problems  httpapi.ProblemWriter

	streaming atomic.Int32 // callers that read events
}

// Routes are the operations of events.
func (h *Handlers) Routes() []*httpapi.Operation {
	const get = http.MethodGet

	return []*httpapi.Operation{
		{ID: "list-all-events", Method: get, Path: "/v1/events", Tag: "events", Summary: "Read or follow the events of the cluster",
			Description: eventsAbout, Status: 200, Streams: true, Answer: reflect.TypeFor[client.EventPage](),
			Events: reflect.TypeFor[task.Event](), Errors: []int{429}, Handler: httpapi.Query(h.listEvents)},
		{ID: "list-events", Method: get, Path: httpapi.InNamespace + "/events", Tag: "events", Summary: "Read or follow the events of a namespace",
			Description: eventsAbout, Status: 200, Streams: true, Answer: reflect.TypeFor[client.EventPage](),
			Events: reflect.TypeFor[task.Event](), Errors: []int{429}, Handler: httpapi.Query(h.listEvents)},
	}
}
