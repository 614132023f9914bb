package api

// Document is the API's description in OpenAPI, as JSON, without a server: what a
// node of this version answers at /openapi.json.
func Document(version string) ([]byte, error) {
	s := server{Config: Config{Version: version}} // nothing is served: the routes are only described
	b, _, err := s.document()
	return b, err
}

// document describes the API in OpenAPI.
func (s *server) document() (asJSON, asYAML []byte, err error) {
	d := newDocument(s.Version)
	for _, rt := range s.all() {
		d.add(rt)
	}
	return d.finish()
}
