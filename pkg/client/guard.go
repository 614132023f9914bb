package client

import (
	"net/http"
	"time"
)

// CodeReadOnly is the code of the Error of a call that would change something, by
// a client whose Config.ReadOnly is set. Nothing was sent.
const CodeReadOnly = "read_only"

// Sent is a call as Config.Trace hears of it. Nothing of it is secret.
type Sent struct {
	Method string
	Path   string        // with its query
	Status int           // of the answer; 0 if there was none
	Took   time.Duration // until the answer began
	Err    error         // why there was none
}

// isChange reports whether a call is meant to change something. A dry run is not.
func (k call) isChange() bool {
	return k.mayWrite() && k.query.Get("dry_run") != "true"
}

// checkReadOnly refuses a call that changes something if the client is read-only.
func (c *connection) checkReadOnly(k call) error {
	if c.readOnly && k.isChange() {
		return &Error{Code: CodeReadOnly, Message: k.method + " " + k.path + " would change something, and this client only reads"}
	}
	return nil
}

// sendTraced sends a request, and reports it to Config.Trace.
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
