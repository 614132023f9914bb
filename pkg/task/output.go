package task

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"time"
)

// Output defines what is kept of the output of attempts. The zero value means the node's defaults.
type Output struct {
	Streams  string   `json:"streams,omitempty" doc:"merged: standard output and standard error share one pipe and keep the order in which they were written. apart: each has its own pipe, and lines are ordered by arrival." absent:"merged" enum:"merged,apart"`
	Limit    Size     `json:"limit,omitempty" doc:"How many bytes of the output of each attempt are kept, from the start, such as 10Mi. The node's spool_limit is the maximum." absent:"the node's" min:"1Ki" max:"1Ti"`
	Keep     Duration `json:"keep,omitzero" doc:"How long output is kept after its last byte. The node's spool_retention is the maximum." absent:"the node's" min:"1m" max:"87600h"`
	Mask     *bool    `json:"mask,omitempty" doc:"Replaces values of secrets in the output of processes by ***. To set it to false, you need the right to use the secrets of the task." absent:"true"`
	Compress *bool    `json:"compress,omitempty" doc:"Compresses the output when the attempt has ended, if that saves a disk block." absent:"true"`
}

// IsZero reports whether all fields have their defaults.
func (o Output) IsZero() bool { return o == Output{} }

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

// Apart reports whether the streams are recorded separately.
func (o Output) Apart() bool { return o.Streams == StreamsApart }

// Raw reports whether the output must not be compressed.
func (o Output) Raw() bool { return o.Compress != nil && !*o.Compress }

// MasksSecrets reports whether values of secrets are replaced in the output of processes.
func (o Output) MasksSecrets() bool { return o.Mask == nil || *o.Mask }

// Mark states when and through which stream the output from byte From up to the next mark arrived.
type Mark struct {
	From   int64
	At     time.Time // in milliseconds
	Stream string    // Stdout or Stderr; empty if the streams were not recorded separately
}

// Success defines when an attempt has succeeded whose process exited by itself, and not because of a signal.
// The zero value means exit code 0, with any output.
type Success struct {
	ExitCodes []int  `json:"exit_codes,omitempty" doc:"The exit codes that count as success." absent:"only 0" min:"0" max:"255" uniqueItems:"true"`
	Output    string `json:"output,omitempty" doc:"An RE2 pattern that at least one line of the output must match." absent:"none" maxLength:"1024" example:"^backup complete$"`
	NotOutput string `json:"not_output,omitempty" doc:"An RE2 pattern that no line of the output may match." absent:"none" maxLength:"1024" example:"(?i)error"`
}

// The maximum size of a pattern: as text in bytes, and as a compiled program in instructions. In the worst
// case, matching takes about 7 ns per instruction for each byte of output.
const (
	MaxPattern        = 1024
	maxPatternProgram = 1100
)

// IsZero reports whether the rule is the default.
func (s Success) IsZero() bool { return len(s.ExitCodes) == 0 && s.Output == "" && s.NotOutput == "" }

// Exit reports whether an exit code counts as success.
func (s Success) Exit(code int) bool {
	if len(s.ExitCodes) == 0 {
		return code == 0
	}
	return slices.Contains(s.ExitCodes, code)
}

// Patterns returns the compiled patterns; nil for an absent one. It does not check their size, because a
// pattern that was accepted by an earlier version with larger limits stays valid.
func (s Success) Patterns() (output, not *regexp.Regexp, err error) {
	if output, err = compilePattern("success.output", s.Output); err == nil {
		not, err = compilePattern("success.not_output", s.NotOutput)
	}
	return output, not, err
}

// validate checks the patterns.
func (s Success) validate() error {
	if err := checkPattern("success.output", s.Output); err != nil {
		return err
	}

	return checkPattern("success.not_output", s.NotOutput)
}

// checkPattern checks that a pattern is valid and not too expensive.
func checkPattern(field, pattern string) error {
	if len(pattern) > MaxPattern {
		return Invalid(CodeTooLong, field, "is %d bytes long; at most %d are allowed", len(pattern), MaxPattern)
	}

	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return noPattern(field, pattern, err)
	}

	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return noPattern(field, pattern, err)
	}
	if n := len(program.Inst); n > maxPatternProgram { // a{1000}{9} is short as text, but large as a program
		return Invalid(CodeTooLong, field, "%s takes %d instructions; at most %d are allowed", Quote(pattern), n, maxPatternProgram)
	}

	return nil
}

// compilePattern compiles a pattern; nil if it is empty.
func compilePattern(field, pattern string) (*regexp.Regexp, error) {
	if pattern == "" {
		return nil, nil
	}

	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, noPattern(field, pattern, err)
	}

	return re, nil
}

// noPattern returns the error for an invalid pattern.
func noPattern(field, pattern string, err error) error {
	return Invalid(CodeBadValue, field, "%s is not a regular expression (RE2): %s", Quote(pattern), err)
}

// DefaultKillSignal is the meaning of an empty kill_signal.
const DefaultKillSignal = "SIGTERM"
