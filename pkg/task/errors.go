package task

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// What a caller may branch on. Every layer wraps these; none invents its own.
var (
	ErrNotFound    = errors.New("not found")
	ErrExists      = errors.New("already exists")
	ErrConflict    = errors.New("changed by someone else")
	ErrStale       = errors.New("not the revision that was asked for")
	ErrFenced      = errors.New("fenced: no longer the owner")
	ErrInvalid     = errors.New("invalid")
	ErrUnknown     = errors.New("outcome unknown")
	ErrUnavailable = errors.New("unavailable")
)

// Error is what is wrong with a field of something that a user wrote. It is the
// same in the API, on the command line and when a record is read back from etcd.
type Error struct {
	Code    string // a word for programs, such as "bad_schedule"; see the Code constants
	Field   string // the field's path as the user spells it: "retry.backoff", "schedule[1]"
	Message string // the value, quoted and cut short, and the rule
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
)

func (e *Error) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + ": " + e.Message
}

// Is makes every Error an ErrInvalid.
func (e *Error) Is(target error) bool { return target == ErrInvalid }

// Invalid makes an Error. The message is built as by fmt.Sprintf.
func Invalid(code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Quote quotes a user's value for a message, cut to 40 bytes so that a hostile
// value cannot flood a log or a terminal.
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
