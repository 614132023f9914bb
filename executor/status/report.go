package status

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

// report is what an attempt has said of itself. Its lines are
//
//	0.4 text         progress: a part of 1, or
//	40% text         percent; the text may be left out
//	name=value       a result
//	checkpoint text  what the next attempt is given
//
// All is bounded: of a result that is too much, and of any other line, there is only
// a count.
type report struct {
	percent    *float64
	text       string
	results    map[string]string
	bytes      int // of results
	checkpoint string
	bad        int
}

var (
	isProgress = regexp.MustCompile(`^(\d{1,3}(?:\.\d{0,20})?|\.\d{1,20})(%?)(?:[ \t]+(.*))?$`)
	isResult   = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_.-]{0,63})=(.*)$`)
)

// reportBefore is what a run has said before an attempt.
func reportBefore(r *task.Run) report {
	s := report{checkpoint: r.Checkpoint, bad: r.BadLines}
	for name, value := range r.Results {
		s.addResult(name, value)
	}
	return s
}

// addLine takes one line, without its end. It reports whether that changed the progress.
func (s *report) addLine(b []byte) (progress bool) {
	line := strings.TrimSpace(string(b))
	if line == "" {
		return false
	}

	if !utf8.ValidString(line) || strings.Contains(line, "\x00") {
		s.bad++
		return false
	}

	if word, value, _ := strings.Cut(line, " "); word == "checkpoint" {
		if value = strings.TrimSpace(value); len(value) > task.MaxCheckpoint {
			s.bad++ // half of one would mislead
			return false
		}

		s.checkpoint = value

		return false
	}

	if m := isProgress.FindStringSubmatch(line); m != nil {
		n, err := strconv.ParseFloat(m[1], 64)
		if m[2] == "" {
			n *= 100
		}

		if err == nil && n <= 100 {
			s.percent, s.text = &n, cutText(m[3], task.MaxProgressText)
			return true
		}
	}

	if m := isResult.FindStringSubmatch(line); m == nil || m[1] == "checkpoint" || !s.addResult(m[1], m[2]) {
		s.bad++
	}

	return false
}

// addResult reports whether there was room for it.
func (s *report) addResult(name, value string) bool {
	before, there := s.results[name]
	size := s.bytes + len(name) + len(value)
	if there {
		size -= len(name) + len(before)
	}

	if size > task.MaxResultBytes || !there && len(s.results) == task.MaxResults {
		return false
	}

	if s.results == nil {
		s.results = map[string]string{}
	}

	s.results[name], s.bytes = value, size

	return true
}

// cutText is the beginning of a text, in whole characters.
func cutText(s string, most int) string {
	if len(s) <= most {
		return s
	}

	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}

	return s[:most]
}

// addLines are taken from a buffer; rest is behind the last line's end.
func (s *report) addLines(b []byte) (rest []byte, progress bool) {
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return b, progress
		}

		progress = s.addLine(b[:i]) || progress
		b = b[i+1:]
	}
}
