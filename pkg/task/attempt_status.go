package task

// What an attempt may say of itself, at most.
const (
	MaxProgressText = 256     // bytes of the text of a progress
	MaxResults      = 32      // values of a run
	MaxResultBytes  = 4 << 10 // of their names and values together
	MaxCheckpoint   = 4 << 10 // bytes
)

// Progress is how far a running attempt is, as it says itself.
type Progress struct {
	Percent *float64 `json:"percent,omitempty" doc:"0 to 100."`
	Text    string   `json:"text,omitempty" doc:"The text from the task, truncated to 256 bytes. It may contain control characters."`
	At      Time     `json:"at,omitzero" doc:"When its node read that."`
	Silent  string   `json:"silent,omitempty" doc:"Why this is unknown: the node did not respond in time."`
}

// AttemptStatus is what a running attempt has reported so far, in its status file.
type AttemptStatus struct {
	Namespace string `json:"namespace"`
	Task      string `json:"task"`
	Run       string `json:"run"`
	Attempt   int    `json:"attempt"`
	Paused    bool   `json:"paused,omitempty" doc:"Its processes are paused."`

	StatusReport
}

// CopyTo puts what an attempt has reported into its run.
func (t AttemptStatus) CopyTo(r *Run) {
	r.StatusReport = t.StatusReport
}
