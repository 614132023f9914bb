package api

// Document is the API's description in OpenAPI, as JSON, without a server: what a
// node of this version answers at /openapi.json.
func Document(version string) ([]byte, error) {
	var s server // nothing is served: the routes are only described
	d := newDocument(version)
	for _, rt := range s.routes() {
		d.add(rt)
	}
	b, _, err := d.finish()
	return b, err
}
