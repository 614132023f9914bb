package record

// Idempotency is the record of a request that has queued a run and must not do so again. Its key is derived from the
// idempotency key of the request, so that every copy of the request finds it.
type Idempotency struct {
	Run     string `json:"run"`     // the id of the run. It begins with the time at which the request was served
	Request string `json:"request"` // a digest of what was requested
}
