package api

import (
	"net/http"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// healthRoutes returns the operations of health checks.
func (s *server) healthRoutes() []*httpapi.Operation {
	const get = http.MethodGet

	return []*httpapi.Operation{
		{ID: "healthz", Method: get, Path: "/healthz", Tag: "health", Summary: "Check that the process responds", Public: true, Status: 200, Streams: true, Handler: httpapi.NoQuery(s.serveHealth)},
		{ID: "readyz", Method: get, Path: "/readyz", Tag: "health", Summary: "Check that the node is ready to work", Public: true, Status: 200, Streams: true, Errors: []int{503}, Handler: httpapi.NoQuery(s.serveReady)},
	}
}
