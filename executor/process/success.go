package process

import (
	"bytes"
	"fmt"
	"regexp"
	"sync/atomic"

	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// maxQuoted is how many bytes of a line a message quotes.
const maxQuoted = 100

// successRule holds the conditions of the task's success field and what was found in the output so far. It
// matches the patterns line by line, so its memory is bounded whatever the attempt prints. MatchLine may be called
// for both streams at the same time.
type successRule struct {
	task.Success
	output, not *regexp.Regexp         // success.output and success.not_output; nil: not set
	found       atomic.Bool            // a line has matched output
	refused     atomic.Pointer[string] // the beginning of the first line that matched not; nil: none
	mask        func(string) string    // hides values of secrets in what is quoted; nil: there are none
}

// newSuccessRule compiles the patterns. It returns an error if one is invalid.
func newSuccessRule(s task.Success) (*successRule, error) {
	r := &successRule{Success: s}
	var err error
	r.output, r.not, err = s.Patterns()
	return r, err
}

// needsOutput reports whether the rule has a pattern. Without one, no lines need to be matched.
func (r *successRule) needsOutput() bool { return r != nil && (r.output != nil || r.not != nil) }

// Settled reports whether further lines cannot change the outcome, so that matching can stop.
func (r *successRule) Settled() bool {
	return r.refused.Load() != nil || r.not == nil && r.found.Load()
}

// MatchLine matches one line of one of the streams, without its line break.
func (r *successRule) MatchLine(b []byte) {
	b = bytes.TrimSuffix(b, []byte{'\r'})
	if r.not != nil && r.refused.Load() == nil && r.not.Match(b) {
		text := r.quoteLine(b)
		r.refused.CompareAndSwap(nil, &text)
	}

	if r.output != nil && !r.found.Load() && r.output.Match(b) {
		r.found.Store(true)
	}
}

// quoteLine returns the beginning of a line for a message. Values of secrets are hidden before the line is cut, because the
// mask does not find what is left of a value that is cut.
func (r *successRule) quoteLine(b []byte) string {
	if r.mask != nil {
		b = []byte(r.mask(string(b)))
	}
	return spool.Tail(b[:min(len(b), maxQuoted)], maxQuoted)
}

// setExited sets the outcome of a process that has exited. The conditions are checked in a fixed order, and the first
// that fails gives the message: exit code, forbidden output, required output.
func (r *Result) setExited(code int, rule *successRule) {
	r.ExitCode, r.State = &code, task.Succeeded

	if rule == nil {
		rule = &noRule
	}

	refused := rule.refused.Load()
	fail := func(reason, format string, args ...any) {
		r.State, r.Reason, r.Message = task.Failed, reason, fmt.Sprintf(format, args...)
	}

	switch {
	case !rule.Exit(code) && len(rule.ExitCodes) > 0:
		fail(task.ReasonExit, "exited with code %d, which is not in success.exit_codes", code)
	case !rule.Exit(code):
		fail(task.ReasonExit, "exited with code %d", code)
	case refused != nil:
		fail(task.ReasonOutput, "its output contains a line that success.not_output forbids: %s", *refused)
	case rule.output != nil && !rule.found.Load():
		fail(task.ReasonOutput, "no line of its output matches success.output, %s", rule.Output)
	case code != 0:
		r.Message = fmt.Sprintf("exited with code %d, which is in success.exit_codes", code)
	}
}

// noRule is the default rule: exit code 0 means success.
var noRule successRule
