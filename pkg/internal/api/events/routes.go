package events

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve events. They are safe for concurrent use.
type Handlers struct {
	Store *store.Store
	Hub   *eventlog.Hub // the events of this node's readers
	Node  string        // the name of this node
	// PageQuiet is how long a page waits without new events before it ends.
	PageQuiet time.Duration
	// CheckStream returns why the caller of a running request may no longer read the answer.
	CheckStream func(ctx context.Context, r *http.Request) error
	Ends        <-chan struct{} // closed when the node stops serving requests; may be nil
	Heartbeat   time.Duration   // the interval between signs of life of a stream
	Problems    httpapi.ProblemWriter

	readers httpapi.Slots // of callers that read events
	watches httpapi.Slots // of those among them that have a watch of their own
}

// Figures are the numbers of readers, and of their events.
type Figures struct {
	eventlog.HubStats
	Readers, OwnWatches int
}

// Figures returns the present figures.
func (h *Handlers) Figures() Figures {
	return Figures{HubStats: h.Hub.Stats(), Readers: h.readers.Held(), OwnWatches: h.watches.Held()}
}

// Routes returns the operations on events.
func (h *Handlers) Routes() []*httpapi.Operation {
	const get = http.MethodGet

	return []*httpapi.Operation{
		{ID: "list-all-events", Method: get, Path: "/v1/events", Tag: "events", Summary: "Read or follow the events of the cluster",
			Description: eventsAbout, Status: 200, Streams: true, Answer: reflect.TypeFor[client.EventPage](),
			Events: reflect.TypeFor[task.Event](), Errors: []int{429}, Handler: httpapi.Query(h.listEvents)},
		{ID: "list-events", Verb: access.Read, Kind: access.Tasks, Method: get, Path: httpapi.InNamespace + "/events", Tag: "events", Summary: "Read or follow the events of a namespace",
			Description: eventsAbout, Status: 200, Streams: true, Answer: reflect.TypeFor[client.EventPage](),
			Events: reflect.TypeFor[task.Event](), Errors: []int{429}, Handler: httpapi.Query(h.listEvents)},
	}
}
