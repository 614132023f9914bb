package attempts

import (
	"net/http"
	"reflect"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/store"
)

// Handlers serve the reports of running attempts. They are safe for concurrent use.
type Handlers struct {
	Store  *store.Store
	Peers  *peers.Client
	Node   string // the name of this node
	Source Source // nil: no attempt runs on this node
	Log    *zap.Logger
}

// Routes returns the operations on running attempts.
func (h *Handlers) Routes() []*httpapi.Operation {
	const get = http.MethodGet

	return []*httpapi.Operation{
		{ID: "list-attempts", Forwarded: true, Method: get, Path: "/v1/attempts", Tag: "runs", Summary: "List the status reports of the attempts on this node",
			Description: listAbout, Status: 200, Answer: reflect.TypeFor[client.AttemptStatuses](), Handler: httpapi.Query(h.listAttempts)},
		{ID: "cancel-attempt", Forwarded: true, Method: http.MethodPost, Path: "/v1/attempts/cancel", Tag: "runs", Summary: "End an attempt on this node while etcd is full, for another node",
			Description: cancelAbout, Status: 200, Answer: reflect.TypeFor[client.AttemptCancel](), Errors: []int{409, 504, 507}, Handler: httpapi.Query(h.cancelAttempt)},
	}
}
