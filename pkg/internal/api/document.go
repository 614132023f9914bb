package api

import "github.com/carillonhq/carillon/pkg/internal/api/accesscontrol"

// Document returns the OpenAPI document as JSON, as a node of this version serves it at /openapi.json.
func Document(version string) ([]byte, error) {
	// Only the descriptions of the routes are used. No handler is called, so the handlers need no dependencies.
	s := server{Config: Config{Version: version}, control: new(accesscontrol.Handlers)}

	b, _, err := s.describeAPI()

	return b, err
}

// describeAPI generates the OpenAPI document from the routes.
func (s *server) describeAPI() (asJSON, asYAML []byte, err error) {
	d := newDocument(s.Version)
	for _, rt := range s.documentedRoutes() {
		d.addRoute(rt)
	}
	return d.encode()
}
