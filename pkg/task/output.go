package task

import "time"

// Output defines what is kept of the output of attempts. The zero value means the node's defaults.
type Output struct {
	Streams  string   `json:"streams,omitempty" doc:"merged (default): standard output and standard error share one pipe and keep the order in which they were written. apart: each has its own pipe, and lines are ordered by arrival."`
	Limit    Size     `json:"limit,omitempty" doc:"How many bytes of the output of each attempt are kept, from the start. Default and maximum: the limit of the node."`
	Keep     Duration `json:"keep,omitzero" doc:"How long output is kept after its last byte. Default and maximum: the retention of the node."`
	Mask     *bool    `json:"mask,omitempty" doc:"Replaces values of secrets in the output of processes by ***. To set it to false, you need the right to use the secrets of the task. Default: true."`
	Compress *bool    `json:"compress,omitempty" doc:"Compresses the output when the attempt has ended, if that saves a disk block. Default: true."`
}

// The values of Output.Streams.
const (
	StreamsMerged = "merged"
	StreamsApart  = "apart"
)

// The names of streams that are recorded separately.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// The ranges of the settings of Output.
const (
	minOutput     = Size(1 << 10)
	maxOutput     = Size(1 << 40)
	minOutputKeep = Duration(time.Minute)
	maxOutputKeep = Duration(10 * 365 * 24 * time.Hour)
)

// Apart reports whether the streams are recorded separately.
func (o Output) Apart() bool { return o.Streams == StreamsApart }

// Raw reports whether the output must not be compressed.
func (o Output) Raw() bool { return o.Compress != nil && !*o.Compress }

// MasksSecrets reports whether values of secrets are replaced in the output of processes.
func (o Output) MasksSecrets() bool { return o.Mask == nil || *o.Mask }

// validate checks the settings.
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

// Mark states when and through which stream the output from byte From up to the next mark arrived.
type Mark struct {
	From   int64
	At     time.Time // in milliseconds
	Stream string    // Stdout or Stderr; empty if the streams were not recorded separately
}
