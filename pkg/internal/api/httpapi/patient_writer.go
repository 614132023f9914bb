package httpapi

import (
	"net/http"
	"time"
)

// PatientWriter is a writer that fails if the caller does not read for a while. Streams use it instead of the
// server's write deadline, which covers a whole answer.
type PatientWriter struct {
	http.ResponseWriter
	limit time.Duration
}

// NewPatientWriter returns a writer whose caller may take up to limit to read what each write sends.
func NewPatientWriter(w http.ResponseWriter, limit time.Duration) PatientWriter {
	return PatientWriter{w, limit}
}

// Write sets a new deadline and writes b.
func (p PatientWriter) Write(b []byte) (int, error) {
	p.Extend()
	return p.ResponseWriter.Write(b)
}

// Extend sets a new deadline.
func (p PatientWriter) Extend() {
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(p.limit)) // errors are ignored: not every http.ResponseWriter supports deadlines
}

// Unwrap gives http.ResponseController access to Flush.
func (p PatientWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// WriteLimit is the usual limit of a PatientWriter for streams.
const WriteLimit = 30 * time.Second
