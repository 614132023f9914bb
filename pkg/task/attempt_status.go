package task

// Limits of what an attempt can report in its status file.
const (
	MaxProgressText = 256     // bytes of the text of a progress report
	MaxResults      = 32      // the number of results of a run
	MaxResultBytes  = 4 << 10 // bytes of all names and values together
	MaxCheckpoint   = 4 << 10 // bytes
)

// Progress is how far a running attempt has come, as it reports itself.
type Progress struct {
	Percent *float64 `json:"percent,omitempty" doc:"0 to 100."`
	Text    string   `json:"text,omitempty" doc:"The text from the task, truncated to 256 bytes. It may contain control characters."`
	At      Time     `json:"at,omitzero" doc:"When its node read that."`
	Silent  string   `json:"silent,omitempty" doc:"Why this is unknown: the node did not respond in time."`
}

// AttemptStatus is what a running attempt has reported so far in its status file.
type AttemptStatus struct {
	Namespace string `json:"namespace"`
	Task      string `json:"task"`
	Run       string `json:"run"`
	Attempt   int    `json:"attempt"`
	Paused    bool   `json:"paused,omitempty" doc:"Its processes are paused."`

	StatusReport
}

// CopyTo copies the report of an attempt into its run.
func (t AttemptStatus) CopyTo(r *Run) {
	r.StatusReport = t.StatusReport
}
