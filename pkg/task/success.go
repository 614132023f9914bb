package task

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
)

// Success says when an attempt has succeeded whose process ended by itself, and not
// by a signal. The zero value: with exit code 0, whatever it printed.
type Success struct {
	ExitCodes []int  `json:"exit_codes,omitempty" doc:"The exit codes that count as success, 0 to 255. Default: only 0."`
	Output    string `json:"output,omitempty" doc:"An RE2 pattern that at least one line of the output must match."`
	NotOutput string `json:"not_output,omitempty" doc:"An RE2 pattern that no line of the output may match."`
}

// How large a pattern of Success may be: as text in bytes, and as the program
// that it is compiled to, in instructions. At worst a node works some 7 ns for each
// instruction on each byte that is printed.
const (
	MaxPattern        = 1024
	maxPatternProgram = 1100
)

// Any reports whether there is anything that the default does not say.
func (s Success) Any() bool { return len(s.ExitCodes) > 0 || s.Output != "" || s.NotOutput != "" }

// Exit reports whether an exit code is success.
func (s Success) Exit(code int) bool {
	if len(s.ExitCodes) == 0 {
		return code == 0
	}
	return slices.Contains(s.ExitCodes, code)
}

// Patterns are the patterns, ready for use; nil for none. How large they may be was
// checked when they were set, by what held then: who had a larger one keeps it.
func (s Success) Patterns() (output, not *regexp.Regexp, err error) {
	if output, err = compilePattern("success.output", s.Output); err == nil {
		not, err = compilePattern("success.not_output", s.NotOutput)
	}
	return output, not, err
}

func (s Success) validate() error {
	for i, code := range s.ExitCodes {
		field := fmt.Sprintf("success.exit_codes[%d]", i)
		if err := checkRange(field, code, 0, 255); err != nil {
			return err
		}
		if slices.Contains(s.ExitCodes[:i], code) {
			return Invalid(CodeBadValue, field, "%d is given twice", code)
		}
	}

	if err := checkPattern("success.output", s.Output); err != nil {
		return err
	}

	return checkPattern("success.not_output", s.NotOutput)
}

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
	if n := len(program.Inst); n > maxPatternProgram { // a{1000}{9} is short, and long
		return Invalid(CodeTooLong, field, "%s takes %d instructions; at most %d are allowed", Quote(pattern), n, maxPatternProgram)
	}

	return nil
}

// compilePattern reads a pattern; nil if there is none.
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

func noPattern(field, pattern string, err error) error {
	return Invalid(CodeBadValue, field, "%s is not a regular expression (RE2): %s", Quote(pattern), err)
}

// DefaultKillSignal is what an empty kill_signal stands for.
const DefaultKillSignal = "SIGTERM"

// KillSignals are the signals that may ask a process to end.
func KillSignals() []string {
	return []string{DefaultKillSignal, "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGABRT", "SIGALRM", "SIGWINCH", "SIGKILL"}
}

func checkKillSignal(name string) error {
	if name == "" {
		return nil
	}
	return oneOf("kill_signal", name, KillSignals()...)
}
