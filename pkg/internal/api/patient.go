package api

import (
	"net/http"
	"time"
)

// patient is a writer that gives up on a caller who has not read anything for a while.
type patient struct {
	http.ResponseWriter
	limit time.Duration
}

// Write writes b, for which the caller has the limit.
func (p patient) Write(b []byte) (int, error) {
	p.extend()
	return p.ResponseWriter.Write(b)
}

// extend begins the limit anew.
func (p patient) extend() {
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(p.limit)) // not every writer has one
}

// Unwrap lets http.ResponseController find Flush.
func (p patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// writeLimit ends a stream whose caller has stopped reading.
const writeLimit = 30 * time.Second
