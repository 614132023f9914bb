package task

// DST says what a wall-clock schedule does where the clocks change.
type DST struct {
	Gap  string `json:"gap,omitempty"`  // run-after (default) or skip: a local time that does not exist
	Fold string `json:"fold,omitempty"` // first (default) or both: a local time that exists twice
}

// The values of DST.
const (
	GapRunAfter = "run-after"
	GapSkip     = "skip"
	FoldFirst   = "first"
	FoldBoth    = "both"
)
