package api

import (
	"context"
	"net/http"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// eventHandlers serve events.
type eventHandlers struct {
	Store *store.Store
	Node  string // this one's name
	// PageQuiet is how long nothing is told until a page ends without all of what has happened.
	PageQuiet time.Duration
	// Refused reports whether the caller of a request that goes on is not let in any more.
	Refused   func(ctx context.Context, r *http.Request) bool
	Ends      <-chan struct{} // closed when the node stops answering; may be nil
	Heartbeat time.Duration   // how often a stream gives a sign of life
	Problems  problemWriter

	streaming atomic.Int32 // callers that read events
}

// Routes are the operations of events.
func (h *eventHandlers) Routes() []*route {
	const get = http.MethodGet

	return []*route{
		{id: "list-all-events", method: get, path: "/v1/events", tag: "events", summary: "Follow what happens in the cluster, or read what has happened",
			about: eventsAbout, status: 200, stream: true, answer: reflect.TypeFor[client.EventPage](),
			events: reflect.TypeFor[task.Event](), errors: []int{429}, handler: Query(h.listEvents)},
		{id: "list-events", method: get, path: inNamespace + "/events", tag: "events", summary: "Follow what happens in a namespace, or read what has happened",
			about: eventsAbout, status: 200, stream: true, answer: reflect.TypeFor[client.EventPage](),
			events: reflect.TypeFor[task.Event](), errors: []int{429}, handler: Query(h.listEvents)},
	}
}
