package executor

import (
	"bytes"
	"fmt"
	"regexp"
	"sync/atomic"

	"github.com/carillonhq/carillon/pkg/task"
)

// longestLine is how much of a line of output the rules of success look at.
const longestLine = 64 << 10

// rule is what success asks for, and what of it was seen in the output so far. Its
// patterns are matched line by line: whatever is printed, it keeps no more of it
// than the beginning of one line of each stream.
type rule struct {
	task.Success
	output, not *regexp.Regexp // nil: none
	found       atomic.Bool    // a line matches output
	refused     atomic.Pointer[string]
}

func newRule(s task.Success) (*rule, error) {
	r := &rule{Success: s}
	var err error
	r.output, r.not, err = s.Patterns()
	return r, err
}

// looks reports whether there is anything to look for in the output.
func (r *rule) looks() bool { return r != nil && (r.output != nil || r.not != nil) }

// settled reports whether no further line can matter.
func (r *rule) settled() bool {
	return r.refused.Load() != nil || r.not == nil && r.found.Load()
}

func (r *rule) line(b []byte) {
	b = bytes.TrimSuffix(b[:min(len(b), longestLine)], []byte{'\r'})
	if r.not != nil && r.not.Match(b) {
		text := tail(b[:min(len(b), 100)], 100)
		r.refused.CompareAndSwap(nil, &text)
	}
	if r.output != nil && !r.found.Load() && r.output.Match(b) {
		r.found.Store(true)
	}
}

// tap cuts a stream into lines for a rule. Its zero value looks at nothing.
type tap struct {
	rule *rule  // nil: none
	part []byte // the beginning of a line whose end has not come
}

func (t *tap) take(b []byte) {
	if t.rule == nil || t.rule.settled() {
		return
	}
	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte{'\n'})
		b = rest
		if len(t.part) > 0 || !ended {
			t.part = append(t.part, line[:min(len(line), longestLine-len(t.part))]...)
			line = t.part
		}
		if !ended && len(t.part) > 0 {
			return
		}
		t.rule.line(line)
		t.part = t.part[:0]
	}
}

// end looks at a last line that has no end.
func (t *tap) end() {
	if len(t.part) > 0 {
		t.rule.line(t.part)
		t.part = nil
	}
}

// exited is the outcome of a process that has ended by itself, with an exit code.
func (r *Result) exited(code int, rule *rule) {
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

var noRule rule // exit code 0
