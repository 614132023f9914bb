package why

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// speaker formats times in the time zone of an answer.
type speaker struct{ zone *time.Location }

// formatTime formats an instant for people, with the time in UTC if that differs: Sun 29 Mar 2026 03:00 CEST
// (01:00 UTC).
func (s speaker) formatTime(t time.Time) string {
	local, utc := t.In(s.zone), t.UTC()
	text := local.Format("Mon 2 Jan 2006 ") + s.formatClock(t)

	_, offset := local.Zone()
	switch {
	case offset == 0 && s.zone == time.UTC:
		return text
	case local.Day() != utc.Day():
		return text + utc.Format(" (Mon 15:04 UTC)")
	case offset == 0:
		return text
	}

	return text + utc.Format(" (15:04 UTC)")
}

// formatClock formats a time of day. It contains seconds and milliseconds only if they are not zero.
func (s speaker) formatClock(t time.Time) string {
	layout := "15:04 MST"

	switch {
	case t.Nanosecond() != 0:
		layout = "15:04:05.000 MST"
	case t.Second() != 0:
		layout = "15:04:05 MST"
	}

	return t.In(s.zone).Format(layout)
}

// formatLocal formats an instant with its offset, for programs.
func (s speaker) formatLocal(t time.Time) string {
	return t.In(s.zone).Format("2006-01-02T15:04:05.000Z07:00")
}

// formatSpan formats a duration for people, with fractions below ten seconds.
func formatSpan(d time.Duration) string {
	switch d = d.Abs(); {
	case d < time.Second:
		return d.Round(tickPrecision).String()
	case d < 10*time.Second:
		return d.Round(10 * tickPrecision).String()
	}

	return task.Duration(d).Approximate()
}

// reasonClause returns the meaning of a reason as the end of a sentence, or "" for an unknown reason.
func reasonClause(reason string) string {
	if r, ok := task.ReasonOf(reason); ok {
		return r.Means
	}
	return ""
}

// byClause returns " by who", or "" if it is unknown.
func byClause(who *task.Actor) string {
	if who == nil {
		return ""
	}
	return " by " + who.String()
}

// quoteReason returns a reason that a user gave, as the end of a clause.
func quoteReason(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + shortenText(reason)
}

// shortenText quotes text of a user or a program, and limits its length.
func shortenText(text string) string {
	const most = 300
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return strconv.Quote(text)
}

// lastLine returns the last line of an output, which usually contains the error.
func lastLine(output string) string {
	lines := strings.Split(strings.TrimRight(output, "\n\r \t"), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// joinExpressions returns a schedule as its user wrote it.
func joinExpressions(s task.Schedules) string { return strings.Join(s, ", ") }

// formatCount returns a number with the singular or plural of a noun.
func formatCount(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// makeSentence returns text with a capital first letter and a period at its end.
func makeSentence(format string, args ...any) string {
	s := fmt.Sprintf(format, args...)
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + strings.TrimRight(s[1:], ".") + "."
}
