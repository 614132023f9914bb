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
	Text    string   `json:"text,omitempty" doc:"As the task wrote it, cut at 256 bytes. It may hold control characters."`
	At      Time     `json:"at,omitzero" doc:"When its node read that."`
	Silent  string   `json:"silent,omitempty" doc:"Why nobody knows: its node did not answer in time."`
}

// AttemptStatus is what a running attempt has reported so far, in its status file.
type AttemptStatus struct {
	Namespace string `json:"namespace"`
	Task      string `json:"task"`
	Run       string `json:"run"`
	Attempt   int    `json:"attempt"`
	Paused    bool   `json:"paused,omitempty" doc:"Its processes stand still."`

	StatusReport
}

// CopyTo puts what an attempt has reported into its run.
func (t AttemptStatus) CopyTo(r *Run) {
	r.StatusReport = t.StatusReport
}
