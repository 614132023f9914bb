// Package cronlog reads what cron has logged, and compares it with the ticks that shadow tasks have recorded.
//
// It reads the messages with which the cron of Debian, cronie and BusyBox say that they start a job, from a file of syslog
// (RFC 3339 or traditional times) or from journalctl -o short-iso or -o json. It skips all other lines.
//
// A start belongs to the tick of the same minute. The log names no line of a crontab, so that starts and ticks are compared by
// host, user and command. The package reads no clock.
package cronlog

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Start is a job that cron has started.
type Start struct {
	Host    string // the host's name without its domain, in lower case
	User    string
	Command string // as Normalize returns it
	Time    time.Time
	PID     string // the process that the log names, which is another one for each start; "" if it names none
}

// Span is the time that a log covers.
type Span struct{ First, Last time.Time }

// Log is what was read.
type Log struct {
	Starts []Start
	Spans  map[string]Span // of each host, from its first line to its last one, whatever they are about
}

// MaxLine is how many bytes of a line are read. Cron's commands are shorter.
const MaxLine = 1 << 20

// Add reads a log. Traditional syslog times have no year and no zone: they are in zone, and in the year before now.
func (l *Log) Add(r io.Reader, zone *time.Location, now time.Time) error {
	if l.Spans == nil {
		l.Spans = map[string]Span{}
	}

	s := bufio.NewScanner(r)
	s.Buffer(nil, MaxLine)

	for n := 1; s.Scan(); n++ {
		m, ok := parseLine(s.Text(), zone, now)
		if !ok {
			continue
		}

		span, known := l.Spans[m.host]
		if !known || m.time.Before(span.First) {
			span.First = m.time
		}
		if !known || m.time.After(span.Last) {
			span.Last = m.time
		}
		l.Spans[m.host] = span

		if s, ok := parseStart(m); ok {
			l.Starts = append(l.Starts, s)
		}
	}

	if err := s.Err(); err != nil {
		return fmt.Errorf("read the log: %w", err)
	}

	return nil
}

// Join adds another log.
func (l *Log) Join(other Log) {
	if l.Spans == nil {
		l.Spans = map[string]Span{}
	}

	l.Starts = append(l.Starts, other.Starts...)
	for host, span := range other.Spans {
		if own, known := l.Spans[host]; known {
			if own.First.Before(span.First) {
				span.First = own.First
			}
			if own.Last.After(span.Last) {
				span.Last = own.Last
			}
		}
		l.Spans[host] = span
	}
}

// message is a line of a log.
type message struct {
	time                     time.Time
	host, program, pid, text string
}

// linePattern matches a line of syslog or of journalctl -o short-iso: time, host, program with a process id, and text.
var linePattern = regexp.MustCompile(`^(?:<\d+>)?(\d{4}-\d\d-\d\dT\S+|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (\S+) ([^\s\[:]+)(?:\[(\d+)\])?: (.*)$`)

// parseLine parses a line in any form.
func parseLine(line string, zone *time.Location, now time.Time) (m message, ok bool) {
	if strings.HasPrefix(line, "{") {
		return parseJournal(line)
	}

	f := linePattern.FindStringSubmatch(line)
	if f == nil {
		return m, false
	}

	at, ok := parseTime(f[1], zone, now)

	return message{at, shortHost(f[2]), f[3], f[4], f[5]}, ok
}

// parseTime parses the time of a line.
func parseTime(text string, zone *time.Location, now time.Time) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05-0700"} { // both also read fractions of seconds
		if at, err := time.Parse(layout, text); err == nil {
			return at, true
		}
	}

	at, err := time.ParseInLocation("Jan _2 15:04:05", text, zone)
	if err != nil {
		return at, false
	}

	// The latest year in which the time is not in the future. A day more, because clocks differ.
	limit := now.Add(24 * time.Hour)
	for year := limit.In(zone).Year(); year > limit.Year()-9; year-- {
		day := time.Date(year, at.Month(), at.Day(), at.Hour(), at.Minute(), at.Second(), 0, zone)
		if day.Day() == at.Day() && !day.After(limit) { // 29 February exists only in some years
			return day, true
		}
	}

	return at, false
}

// journalEntry contains the fields of journalctl -o json. A message that is not UTF-8 is an array of bytes.
type journalEntry struct {
	Time    string          `json:"__REALTIME_TIMESTAMP"`
	Host    string          `json:"_HOSTNAME"`
	Program string          `json:"SYSLOG_IDENTIFIER"`
	PID     string          `json:"_PID"`
	Message json.RawMessage `json:"MESSAGE"`
}

// parseJournal parses a line of journalctl -o json.
func parseJournal(line string) (m message, ok bool) {
	var e journalEntry
	if json.Unmarshal([]byte(line), &e) != nil {
		return m, false
	}

	us, err := strconv.ParseInt(e.Time, 10, 64)
	if err != nil || e.Host == "" {
		return m, false
	}

	var text string
	if json.Unmarshal(e.Message, &text) != nil {
		var raw []int
		if json.Unmarshal(e.Message, &raw) != nil {
			return m, false
		}

		b := make([]byte, len(raw))
		for i, c := range raw {
			b[i] = byte(c)
		}
		text = string(b)
	}

	return message{time.UnixMicro(us), shortHost(e.Host), e.Program, e.PID, text}, true
}

// shortHost returns the name of a host without its domain.
func shortHost(name string) string {
	name, _, _ = strings.Cut(strings.ToLower(name), ".")
	return name
}

var (
	// vixieStart matches what the crons of Debian and cronie log, with the process id that Debian's can add.
	vixieStart = regexp.MustCompile(`^\(([^()]+)\) CMD \((?:\[\d+\] )?(.*)\)\s*$`)
	// busyBoxStart matches what crond of BusyBox logs.
	busyBoxStart = regexp.MustCompile(`^USER (\S+) pid +(\d+) cmd (.*)$`)
)

// parseStart parses the message about a job that starts.
func parseStart(m message) (Start, bool) {
	switch strings.ToLower(path.Base(m.program)) {
	case "cron", "crond":
	default:
		return Start{}, false
	}

	if f := vixieStart.FindStringSubmatch(m.text); f != nil { // a child of cron logs it
		return Start{Host: m.host, User: f[1], Command: Normalize(f[2]), Time: m.time, PID: m.pid}, true
	}
	if f := busyBoxStart.FindStringSubmatch(m.text); f != nil { // crond itself logs it
		return Start{Host: m.host, User: f[1], Command: Normalize(f[3]), Time: m.time, PID: f[2]}, true
	}

	return Start{}, false
}

// Normalize returns a command as cron logs it, without space around it: control characters and bytes beyond ASCII are escaped.
func Normalize(command string) string {
	var b strings.Builder
	for _, c := range []byte(strings.TrimSpace(command)) {
		switch {
		case c < ' ':
			b.WriteByte('^')
			b.WriteByte(c + '@')
		case c == 0x7f:
			b.WriteString("^?")
		case c > 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}

	return b.String()
}
