package api

import (
	"net/http"
	"reflect"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// nodeRoutes returns the operations on this node itself: health checks, metrics, and the description of its API. Only
// health checks need no token: metrics show how many tasks and runs other teams have.
func (s *server) nodeRoutes() []*httpapi.Operation {
	const get = http.MethodGet
	document, text := reflect.TypeFor[map[string]any](), reflect.TypeFor[string]()

	return []*httpapi.Operation{
		{ID: "healthz", Method: get, Path: "/healthz", Tag: "health", Summary: "Check that the process responds", Public: true, Status: 200, Streams: true, Handler: httpapi.NoQuery(s.serveHealth)},
		{ID: "readyz", Method: get, Path: "/readyz", Tag: "health", Summary: "Check that the node is ready to work", Description: "With a valid token, the answer 503 contains the reason.", Public: true, Status: 200, Streams: true, Errors: []int{503}, Handler: httpapi.NoQuery(s.serveReady)},
		{ID: "get-metrics", Verb: access.Read, Kind: access.Cluster, Method: get, Path: "/metrics", Tag: "health", Summary: "Read the node's Prometheus metrics",
			Description: "A node with the setting metrics_listen also serves them without a token, at that address.",
			Status:      200, Answer: text, AnswerType: "text/plain", Handler: httpapi.NoQuery(s.serveMetrics)},
		{ID: "get-openapi-json", Method: get, Path: "/openapi.json", Tag: "health", Summary: "Read the OpenAPI document as JSON",
			Status: 200, Answer: document, AnswerType: "application/openapi+json", Handler: httpapi.NoQuery(s.serveOpenAPI("json"))},
		{ID: "get-openapi-yaml", Method: get, Path: "/openapi.yaml", Tag: "health", Summary: "Read the OpenAPI document as YAML",
			Status: 200, Answer: text, AnswerType: "application/openapi+yaml", Handler: httpapi.NoQuery(s.serveOpenAPI("yaml"))},
	}
}
