package status

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

// report is what an attempt has reported so far. Its lines are
//
//	0.4 text         progress as a fraction of 1, or
//	40% text         in percent; the text is optional
//	name=value       a result
//	checkpoint text  a text that the next attempt receives
//
// Its size is bounded: results beyond the limits and lines that are not understood are only
// counted.
type report struct {
	percent    *float64          // 0 to 100; nil: no progress was reported
	text       string            // the text of the progress
	results    map[string]string // nil: none
	bytes      int               // total length of the names and values in results
	checkpoint string            // the latest; "": none
	bad        int               // number of lines that were ignored

	mask func(string) string // hides values of secrets in the progress and the results; nil: there are none
}

var (
	isProgress = regexp.MustCompile(`^(\d{1,3}(?:\.\d{0,20})?|\.\d{1,20})(%?)(?:[ \t]+(.*))?$`)
	isResult   = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_.-]{0,63})=(.*)$`)
)

// reportBefore returns the report with which an attempt begins: the results, the checkpoint and the number of bad lines
// of the run's previous attempts.
func reportBefore(r *task.Run) report {
	s := report{checkpoint: r.Checkpoint, bad: r.BadLines}
	for name, value := range r.Results {
		s.addResult(name, value)
	}
	return s
}

// addLine adds one line, without its line break. It reports whether the line changed the progress.
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
			s.bad++ // a truncated checkpoint would mislead the next attempt
			return false
		}

		s.checkpoint = value

		return false
	}

	if s.mask != nil {
		line = s.mask(line)
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

// addResult sets a result. It returns false if the results would exceed their limits.
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

// cutText cuts a text to at most most bytes, without splitting a character.
func cutText(s string, most int) string {
	if len(s) <= most {
		return s
	}

	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}

	return s[:most]
}

// addLines adds all complete lines in b. It returns the rest after the last line break, and whether the progress
// changed.
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
