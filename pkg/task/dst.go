package task

// DST defines how a wall-clock schedule behaves when the clocks change.
type DST struct {
	Gap  string `json:"gap,omitempty"`  // run-after (default) or skip: for local times that do not exist
	Fold string `json:"fold,omitempty"` // first (default) or both: for local times that exist twice
}

// The values of DST.
const (
	GapRunAfter = "run-after"
	GapSkip     = "skip"
	FoldFirst   = "first"
	FoldBoth    = "both"
)
