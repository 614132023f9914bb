package talks

import (
	"net/http"
	"reflect"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/store"
)

// Handlers serve what attempts say of themselves.
type Handlers struct {
	Store  *store.Store
	Peers  *peers.Client
	Node   string // this one's name
	Source Source // what the attempts on this node say; nil hears none
}

// Routes are the operations of what attempts say.
func (h *Handlers) Routes() []*httpapi.Operation {
	const get = http.MethodGet

	return []*httpapi.Operation{
		{ID: "list-talks", Forwarded: true, Method: get, Path: "/v1/talks", Tag: "runs", Summary: "What the attempts that run on the node that is asked say of themselves",
			Description: talksAbout, Status: 200, Answer: reflect.TypeFor[client.Talks](), Handler: httpapi.Query(h.listTalks)},
	}
}
