package api

import (
	"net/http"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// healthRoutes are the operations of healts.
func (s *server) healthRoutes() []*httpapi.Operation {
	const get = http.MethodGet

	return []*httpapi.Operation{
		{ID: "healthz", Method: get, Path: "/healthz", Tag: "health", Summary: "Whether the process answers", Public: true, Status: 200, Streams: true, Handler: httpapi.NoQuery(s.health)},
		{ID: "readyz", Method: get, Path: "/readyz", Tag: "health", Summary: "Whether the node does its work", Public: true, Status: 200, Streams: true, Errors: []int{503}, Handler: httpapi.NoQuery(s.ready)},
	}
}
