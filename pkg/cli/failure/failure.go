// Package failure defines the errors of the command line. Each has an exit code that tells scripts the kind of
// failure, a code and a field for -o json, and a hint for people.
//
// It creates and inspects errors; package factory prints them. Every exit code of the program is a constant
// here and is described by "carillon help exit-codes".
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

// The exit codes; "carillon help exit-codes" describes them.
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

// Codes that only the command line uses. The others are defined by packages client and task.
const (
	CodeUsage       = "usage"
	CodeFailure     = "failure"
	CodeConfirm     = "needs_confirmation"
	CodeRunFailed   = "run_did_not_succeed"
	codeInterrupted = "interrupted"
)

// Problem is an error in the form of -o json.
type Problem struct {
	Code    string `json:"code"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	// Errors has each problem, if there are several of the same input. The first one is also the problem itself.
	Errors []Problem `json:"errors,omitempty"`
}

// Error is an error with an exit code.
type Error struct {
	Problem
	Location string // file:line:column, if the error concerns a file
	Exit     int
	Reported bool     // the error has been printed already
	Others   []*Error // further problems of the same input
}

// Error implements error.
func (e *Error) Error() string {
	s := e.Message
	if e.Field != "" {
		s = e.Field + ": " + s
	}

	if e.Location != "" {
		s = e.Location + ": " + s
	}

	return s
}

// Joined returns the problems of one input that errors.Join has joined, or nil if err is something else.
func Joined(err error) []error {
	if len(task.Problems(err)) < 2 {
		return nil
	}

	for err != nil {
		if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // it unwraps each error itself
			return joined.Unwrap()
		}
		err = errors.Unwrap(err)
	}

	return nil
}

// Usage returns the error for an invalid command line.
func Usage(format string, args ...any) *Error {
	return &Error{Exit: ExitUsage, Problem: Problem{Code: CodeUsage, Message: fmt.Sprintf(format, args...)}}
}

// WithHint sets the hint: what the user can do about the error.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// NotFound returns the error for something that does not exist.
func NotFound(format string, args ...any) *Error {
	return &Error{Exit: ExitNotFound, Problem: Problem{Code: client.CodeNotFound, Message: fmt.Sprintf(format, args...)}}
}

// Interrupted returns the error for a command that the user or a signal has stopped.
func Interrupted(err error) error {
	var f *Error
	if errors.As(err, &f) && f.Exit == ExitInterrupted {
		return f
	}
	return &Error{Exit: ExitInterrupted, Problem: Problem{Code: codeInterrupted, Message: "interrupted"}}
}

// Locate adds the position in a file, if err contains one.
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

// AlreadyReported returns the error after several errors that were already printed, or nil if there were none.
// If their exit codes differ, the result has ExitFailure.
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

// FileReason returns the text of a file system error without the operation and the path.
func FileReason(err error) string {
	if e, ok := err.(*fs.PathError); ok {
		return e.Err.Error()
	}
	return err.Error()
}
