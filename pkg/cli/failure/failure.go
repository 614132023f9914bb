package failure

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// The exit codes; "carillon help exit-codes" explains them.
const (
	ExitFailure     = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitConflict    = 4
	ExitUnavailable = 5
	ExitAuth        = 6
	ExitFinding     = 8
	ExitRun         = 9
	ExitInterrupted = 130
)

// Codes that only the command line has; the others are the client's and the tasks'.
const (
	CodeUsage       = "usage"
	CodeFailure     = "failure"
	CodeConfirm     = "needs_confirmation"
	CodeRunFailed   = "run_did_not_succeed"
	codeInterrupted = "interrupted"
)

// Problem is an error as -o json shows it.
type Problem struct {
	Code    string `json:"code"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// Error is an error that knows its exit code.
type Error struct {
	Problem
	Location string // file:line:column, if it is about a file
	Exit     int
	Reported bool // it has been told already
}

func (f *Error) Error() string {
	s := f.Message
	if f.Field != "" {
		s = f.Field + ": " + s
	}

	if f.Location != "" {
		s = f.Location + ": " + s
	}

	return s
}

// Usage is a mistake in the command line itself.
func Usage(format string, args ...any) *Error {
	return &Error{Exit: ExitUsage, Problem: Problem{Code: CodeUsage, Message: fmt.Sprintf(format, args...)}}
}

// WithHint sets what the user can do about it.
func (f *Error) WithHint(format string, args ...any) *Error {
	f.Hint = fmt.Sprintf(format, args...)
	return f
}

// NotFound is the error of something that is not there.
func NotFound(format string, args ...any) *Error {
	return &Error{Exit: ExitNotFound, Problem: Problem{Code: client.CodeNotFound, Message: fmt.Sprintf(format, args...)}}
}

// Interrupted is err after the user, or whoever stopped us, made it happen.
func Interrupted(err error) error {
	var f *Error
	if errors.As(err, &f) && f.Exit == ExitInterrupted {
		return f
	}
	return &Error{Exit: ExitInterrupted, Problem: Problem{Code: codeInterrupted, Message: "interrupted"}}
}

// Locate keeps the place in a file with the message.
func Locate(err error, f *Error) *Error {
	var placed *manifest.Error
	if !errors.As(err, &placed) {
		return f
	}

	f.Location = fmt.Sprintf("%s:%d:%d", placed.File, placed.Line, placed.Column)
	return f
}

// IsUnreachable reports whether the server did not answer at all.
func IsUnreachable(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Status == 0 && errors.Is(e, task.ErrUnavailable)
}

// AlreadyReported is the error after several that were told already; nil if none were.
func AlreadyReported(codes []int) error {
	if len(codes) == 0 {
		return nil
	}

	exit := codes[0]
	if slices.ContainsFunc(codes, func(c int) bool { return c != exit }) {
		exit = ExitFailure
	}

	return &Error{Exit: exit, Reported: true}
}

// FileReason is an error of the file system without the call's name and the path.
func FileReason(err error) string {
	if e, ok := err.(*fs.PathError); ok {
		return e.Err.Error()
	}
	return err.Error()
}
