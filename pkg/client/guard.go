package client

import (
	"net/http"
	"time"
)

// CodeReadOnly is the code of the error of a call that was not sent, because it would change something and
// Config.ReadOnly is set.
const CodeReadOnly = "read_only"

// Sent describes a call for Config.Trace. It contains no secrets.
type Sent struct {
	Method string
	Path   string        // including the query
	Status int           // of the answer; 0 if there was no answer
	Took   time.Duration // until the beginning of the answer
	Err    error         // why there was no answer
}

// isChange reports whether a call is intended to change something. A dry run is not.
func (k call) isChange() bool {
	return k.mayWrite() && k.query.Get("dry_run") != "true"
}

// checkReadOnly returns an error for a call that changes something if the client is read-only.
func (c *connection) checkReadOnly(k call) error {
	if c.readOnly && k.isChange() {
		return &Error{Code: CodeReadOnly, Message: k.method + " " + k.path + " would change something, but this client is read-only"}
	}
	return nil
}

// sendTraced sends a request and reports it to Config.Trace.
func (c *connection) sendTraced(req *http.Request) (*http.Response, error) {
	if c.trace == nil {
		return c.http.Do(req)
	}

	sent := Sent{Method: req.Method, Path: req.URL.RequestURI()}
	began := time.Now()
	res, err := c.http.Do(req)
	sent.Took = time.Since(began)
	if sent.Err = err; err == nil {
		sent.Status = res.StatusCode
	}

	c.trace(sent)

	return res, err
}
