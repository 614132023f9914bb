package api

import (
	"net/http"
)

// healthRoutes are the operations of healts.
func (s *server) healthRoutes() []*route {
	const get = http.MethodGet

	return []*route{
		{id: "healthz", method: get, path: "/healthz", tag: "health", summary: "Whether the process answers", open: true, status: 200, stream: true, handler: NoQuery(s.health)},
		{id: "readyz", method: get, path: "/readyz", tag: "health", summary: "Whether the node does its work", open: true, status: 200, stream: true, errors: []int{503}, handler: NoQuery(s.ready)},
	}
}
