package task

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
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
	Hint    string // what else the reader can do about it; usually empty, because the rule says enough
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

// maxTyped is the maximum length of a word that is compared with names. It bounds the time and the memory of
// editDistance.
const maxTyped = MaxName + 16

// Nearest returns the word of words that typed probably means, or "" if none is similar enough. It ignores
// case, '-' and '_'. If typed has at least three letters, words that begin with it are similar. If several
// words are equally similar, the first one is returned. A word and its opposite, such as delete and undelete, are not
// similar.
//
// A suggestion must not mean something else than what was typed. So a letter in place of another one counts as two
// mistakes, and a short word may have only one: "get" is not "set", and "rename" is not "resume".
func Nearest(typed string, words []string) string {
	if len(typed) > maxTyped {
		return ""
	}

	typed = normalizeKey(typed)
	best, least := "", maxMistakes(typed)+1
	for _, w := range words {
		word := normalizeKey(w)
		d := len(word) - len(typed) // a lower bound of the distance
		switch {
		case isOpposite(typed, word):
			continue
		case len(typed) >= 3 && strings.HasPrefix(word, typed):
			d = min(d, 1)
		case max(d, -d) >= least:
			continue
		default:
			d = editDistance(typed, word)
		}

		if d < least && d < len(typed) {
			best, least = w, d
		}
	}

	return best
}

// maxMistakes returns how many mistakes a word may have and still be recognized.
func maxMistakes(typed string) int {
	switch {
	case len(typed) < 5:
		return 1
	case len(typed) < 8:
		return 2
	}

	return min(len(typed)/3, 4)
}

// isOpposite reports whether one word is the other one with a prefix that negates or reverses it.
func isOpposite(a, b string) bool {
	if len(a) < len(b) {
		a, b = b, a
	}

	prefix, ok := strings.CutSuffix(a, b)

	return ok && len(b) > 2 && slices.Contains([]string{"un", "dis", "de", "non", "no", "not"}, prefix)
}

// didYouMean returns the end of a message with the word that was probably meant, or "".
func didYouMean(typed string, words []string) string {
	near := Nearest(typed, words)
	if near == "" {
		return ""
	}
	return "; did you mean " + near + "?"
}

// editDistance returns the number of insertions, deletions and swaps of adjacent bytes that convert a to b. To replace a
// byte takes a deletion and an insertion.
func editDistance(a, b string) int {
	if len(b) > maxTyped {
		return len(b) // too long to be similar
	}

	var rows [3][maxTyped + 1]int // on the stack, because there may be hundreds of words
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		last[j] = j
	}

	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			row[j] = min(last[j], row[j-1]) + 1
			if a[i-1] == b[j-1] {
				row[j] = min(row[j], last[j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}

		before, last, row = last, row, before
	}

	return last[len(b)]
}

// suggestName converts a text to a similar valid name, for a suggestion. It returns "" if no character of the text
// is valid.
func suggestName(text string) string {
	return reshapeName(strings.ToLower(text), "._-", MaxName)
}

// reshapeName keeps ASCII letters and digits, and the marks between them. Other characters become one dash. The
// result has at most most bytes.
func reshapeName(text, marks string, most int) string {
	var b []byte
	for _, c := range []byte(text) {
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		last := byte('-') // a name does not begin with a mark
		if len(b) > 0 {
			last = b[len(b)-1]
		}

		switch {
		case alnum:
			b = append(b, c)
		case strings.IndexByte("._-/", last) >= 0:
		case strings.IndexByte(marks, c) >= 0:
			b = append(b, c)
		default:
			b = append(b, '-')
		}
	}

	b = b[:min(len(b), most)]
	return strings.TrimRight(string(b), "._-/")
}

// NoneOf returns the error for a value that is not in the list. It suggests the value that was probably meant.
func NoneOf(code, field, v string, allowed ...string) *Error {
	return Invalid(code, field, "%s is not one of %s%s", Quote(v), strings.Join(allowed, ", "), didYouMean(v, allowed))
}
