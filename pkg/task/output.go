package task

import "time"

// Output says what is kept of what attempts print. The zero value is what the node
// of the attempt does by default.
type Output struct {
	Streams  string   `json:"streams,omitempty" doc:"merged (default): standard output and standard error by one pipe, in the order in which they were written; apart: by two, told apart, in the order in which they arrive."`
	Limit    Size     `json:"limit,omitempty" doc:"Bytes kept of each attempt, the first; at most, and by default, what the node keeps."`
	Keep     Duration `json:"keep,omitzero" doc:"How long after its last byte the output is kept; at most, and by default, as long as the node keeps it."`
	Compress *bool    `json:"compress,omitempty" doc:"Once the attempt has ended, if that saves a block of the disk. Default: true."`
}

// How the two streams of a process are read.
const (
	StreamsMerged = "merged"
	StreamsApart  = "apart"
)

// The names of the streams that are told apart.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Bounds of what a task may ask for.
const (
	minOutput     = Size(1 << 10)
	maxOutput     = Size(1 << 40)
	minOutputKeep = Duration(time.Minute)
	maxOutputKeep = Duration(10 * 365 * 24 * time.Hour)
)

// Apart reports whether the streams are told apart.
func (o Output) Apart() bool { return o.Streams == StreamsApart }

// Raw reports whether the output is not to be compressed.
func (o Output) Raw() bool { return o.Compress != nil && !*o.Compress }

func (o Output) validate() error {
	if o.Streams != "" {
		if err := oneOf("output.streams", o.Streams, StreamsMerged, StreamsApart); err != nil {
			return err
		}
	}

	if o.Limit != 0 && (o.Limit < minOutput || o.Limit > maxOutput) {
		return Invalid(CodeOutOfRange, "output.limit", "%s is not between %s and %s", o.Limit, minOutput, maxOutput)
	}

	return checkOptional("output.keep", o.Keep, minOutputKeep, maxOutputKeep)
}

// Mark says that what an attempt printed from a byte on, up to the next mark, came at
// a time and by a stream.
type Mark struct {
	From   int64
	At     time.Time // to the millisecond
	Stream string    // Stdout or Stderr; empty: they were not told apart
}
