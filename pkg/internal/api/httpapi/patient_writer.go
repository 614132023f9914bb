package httpapi

import (
	"net/http"
	"time"
)

// PatientWriter is a writer that gives up on a caller who has not read anything for a while.
type PatientWriter struct {
	http.ResponseWriter
	limit time.Duration
}

// NewPatientWriter makes a writer whose caller has the limit for each write.
func NewPatientWriter(w http.ResponseWriter, limit time.Duration) PatientWriter {
	return PatientWriter{w, limit}
}

// Write writes b, for which the caller has the limit.
func (p PatientWriter) Write(b []byte) (int, error) {
	p.Extend()
	return p.ResponseWriter.Write(b)
}

// Extend begins the limit anew.
func (p PatientWriter) Extend() {
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(p.limit)) // not every writer has one
}

// Unwrap lets http.ResponseController find Flush.
func (p PatientWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// WriteLimit ends a stream whose caller has stopped reading.
const WriteLimit = 30 * time.Second
