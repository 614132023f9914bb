package api

import (
	"net/http"
	"reflect"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
)

// talkHandlers serve what attempts say of themselves.
type talkHandlers struct {
	Store  *store.Store
	Peers  *Peers
	Node   string // this one's name
	Source Talks  // what the attempts on this node say; nil hears none
}

// Routes are the operations of what attempts say.
func (h *talkHandlers) Routes() []*route {
	const get = http.MethodGet

	return []*route{
		{id: "list-talks", forwarded: true, method: get, path: "/v1/talks", tag: "runs", summary: "What the attempts that run on the node that is asked say of themselves",
			about: talksAbout, status: 200, answer: reflect.TypeFor[client.Talks](), handler: Query(h.listTalks)},
	}
}
