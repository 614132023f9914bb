package task

import "time"

// Output says what is kept of what attempts print. The zero value is what the node
// of the attempt does by default.
type Output struct {
	Streams  string   `json:"streams,omitempty" doc:"merged (default): standard output and standard error share one pipe and keep the order in which they were written. apart: each has its own pipe, and lines are ordered by arrival."`
	Limit    Size     `json:"limit,omitempty" doc:"How many bytes of the output of each attempt are kept, from the start. Default and maximum: the limit of the node."`
	Keep     Duration `json:"keep,omitzero" doc:"How long output is kept after its last byte. Default and maximum: the retention of the node."`
	Compress *bool    `json:"compress,omitempty" doc:"Compresses the output when the attempt has ended, if that saves a disk block. Default: true."`
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
