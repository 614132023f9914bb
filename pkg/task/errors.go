package task

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// The errors on which a caller may branch. Every layer wraps these and defines none of its own.
var (
	ErrNotFound    = errors.New("not found")
	ErrExists      = errors.New("already exists")
	ErrConflict    = errors.New("changed by someone else")
	ErrStale       = errors.New("not the requested revision")
	ErrFenced      = errors.New("fenced: no longer the owner")
	ErrInvalid     = errors.New("invalid")
	ErrUnknown     = errors.New("outcome unknown")
	ErrUnavailable = errors.New("unavailable")
	ErrTooMany     = errors.New("too many within a short time")
)

// Error is a problem with one field of a user's input. It is the same in the API, on the command line, and when
// a record is read from etcd.
type Error struct {
	Code    string // one of the Code constants, for programs, such as "bad_schedule"
	Field   string // the path of the field as the user writes it: "retry.backoff", "schedule[1]"; "" for the input as a whole
	Message string // the value, quoted and shortened, and the rule
}

// The codes of Error.
const (
	CodeRequired    = "required"
	CodeBadName     = "bad_name"
	CodeBadLabel    = "bad_label"
	CodeBadSchedule = "bad_schedule"
	CodeNeverFires  = "never_fires"
	CodeBadTimezone = "bad_timezone"
	CodeBadTime     = "bad_time"
	CodeBadDuration = "bad_duration"
	CodeBadSelector = "bad_selector"
	CodeBadEnv      = "bad_env"
	CodeBadValue    = "bad_value"
	CodeOutOfRange  = "out_of_range"
	CodeTooLong     = "too_long"
	CodeTooMany     = "too_many"
	CodeUnknown     = "unknown_field"
	CodeDuplicate   = "duplicate_field"
	CodeBadJSON     = "bad_json"
	CodeNotAllowed  = "not_allowed" // forbidden by the record of the namespace
)

// Error implements error.
func (e *Error) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + ": " + e.Message
}

// Is reports that every Error is an ErrInvalid.
func (e *Error) Is(target error) bool { return target == ErrInvalid }

// Invalid returns an Error. The message is formatted as by fmt.Sprintf.
func Invalid(code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Quote quotes a user's value for a message. It cuts the value to 40 bytes, so that a hostile value cannot
// flood a log or a terminal.
func Quote(s string) string {
	const most = 40
	if len(s) > most {
		cut := most
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}

	return strconv.Quote(s)
}
