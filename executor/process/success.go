package process

import (
	"bytes"
	"fmt"
	"regexp"
	"sync/atomic"

	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// successRule is what success asks for, and what of it was seen in the output so far. Its
// patterns are matched line by line: whatever is printed, it keeps no more of it
// than the beginning of one line of each stream.
type successRule struct {
	task.Success
	output, not *regexp.Regexp // nil: none
	found       atomic.Bool    // a line matches output
	refused     atomic.Pointer[string]
}

func newSuccessRule(s task.Success) (*successRule, error) {
	r := &successRule{Success: s}
	var err error
	r.output, r.not, err = s.Patterns()
	return r, err
}

// needsOutput reports whether there is anything to look for in the output.
func (r *successRule) needsOutput() bool { return r != nil && (r.output != nil || r.not != nil) }

// Settled reports whether no further line can matter.
func (r *successRule) Settled() bool {
	return r.refused.Load() != nil || r.not == nil && r.found.Load()
}

// MatchLine looks at one line of one of the streams.
func (r *successRule) MatchLine(b []byte) {
	b = bytes.TrimSuffix(b, []byte{'\r'})
	if r.not != nil && r.not.Match(b) {
		text := spool.Tail(b[:min(len(b), 100)], 100)
		r.refused.CompareAndSwap(nil, &text)
	}

	if r.output != nil && !r.found.Load() && r.output.Match(b) {
		r.found.Store(true)
	}
}

// setExited is the outcome of a process that has ended by itself, with an exit code.
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
		fail(task.ReasonOutput, "its output has a line that success.not_output forbids: %s", *refused)
	case rule.output != nil && !rule.found.Load():
		fail(task.ReasonOutput, "no line of its output matches success.output, %s", rule.Output)
	case code != 0:
		r.Message = fmt.Sprintf("exited with code %d, which is in success.exit_codes", code)
	}
}

var noRule successRule // exit code 0
