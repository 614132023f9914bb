package cli

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// mostUnended is how much of a line without an end is held back, and unendedFor
	// how long: a question, or a row of dots, is to be seen as it grows.
	mostUnended = 16 << 10
	unendedFor  = 200 * time.Millisecond
	// mostPadding is the widest name that others are padded to.
	mostPadding = 24
)

// merger writes the outputs of runs to one stream, whole lines of each, those of
// several tasks behind the task's name. What a terminal might obey is taken out; to
// all else goes what the run wrote, byte by byte.
type merger struct {
	*app
	prefixed bool // lines begin with the task's name
	width    int  // of the names
	clean    bool
	out      io.Writer

	mu   sync.Mutex
	open *lane // whose line is not ended
	err  error // why nothing more can be written
}

// merge makes a merger for the outputs of tasks.
func (a *app) merge(tasks []ref) *merger {
	_, tty := a.terminal(a.Out)
	m := &merger{app: a, prefixed: len(tasks) > 1, clean: tty, out: a.Out}
	for _, r := range tasks {
		m.width = max(m.width, min(len(a.show(r)), mostPadding))
	}
	return m
}

// lane is one run's way into a merger. One goroutine writes; its fields are the
// merger's.
type lane struct {
	m       *merger
	prefix  string
	run     task.Run
	attempt int
	held    []byte // a line that is not ended
	timer   *time.Timer
}

func (m *merger) lane(r task.Run) *lane {
	l := &lane{m: m, run: r}
	if m.prefixed {
		name := m.show(ref{r.Namespace, r.Task})
		l.prefix = m.paint(colourOf(r), fmt.Sprintf("%-*s |", m.width, name)) + " "
	}
	return l
}

// colourOf is a task's colour, the same at any time.
func colourOf(r task.Run) colour {
	colours := []colour{"36", "32", "33", "35", "34", "96", "92", "93", "95", "94"}
	h := fnv.New32a()
	_, _ = h.Write([]byte(r.Namespace + "/" + r.Task)) // never fails
	return colours[h.Sum32()%uint32(len(colours))]
}

// Write takes what the attempt wrote. An error is the merger's stream's.
func (l *lane) Write(b []byte) (int, error) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.held = append(l.held, b...)
	whole := bytes.LastIndexByte(l.held, '\n') + 1
	l.take(whole)
	switch {
	case len(l.held) >= mostUnended:
		l.flush()
	case len(l.held) > 0 && l.m.output != asJSONL:
		if l.timer == nil {
			l.timer = time.AfterFunc(unendedFor, l.late)
		} else {
			l.timer.Reset(unendedFor)
		}
	}
	return len(b), l.m.err
}

func (l *lane) late() {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.flush()
}

// end says that the attempt writes nothing more.
func (l *lane) end() {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.take(len(l.held))
	if l.prefix != "" && l.m.open == l {
		l.m.endLine()
	}
}

// flush writes what is held back, but for a character of which a part is missing,
// or what may be half an end of a line.
func (l *lane) flush() {
	n := len(l.held)
	for i := 1; i < utf8.UTFMax && i <= n; i++ {
		if b := l.held[n-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(l.held[n-i:]) {
				n -= i
			}
			break
		}
	}
	if n > 0 && l.held[n-1] == '\r' {
		n--
	}
	l.take(n)
}

// take writes the first n bytes of what is held back.
func (l *lane) take(n int) {
	if n == 0 || l.m.err != nil {
		return
	}
	l.m.write(l, l.held[:n])
	if l.held = append(l.held[:0], l.held[n:]...); cap(l.held) > 4*mostUnended {
		l.held = bytes.Clone(l.held)
	}
}

func (m *merger) write(l *lane, text []byte) {
	var out bytes.Buffer
	if m.output == asJSONL {
		for line := range bytes.Lines(text) {
			m.writeJSON(&out, l, line)
		}
		m.print(out.Bytes())
		return
	}
	if m.open != nil && m.open != l {
		out.WriteByte('\n')
		m.open = nil
	}
	if m.clean {
		text = harmless(text)
	}
	if l.prefix == "" {
		out.Write(text)
	} else {
		for line := range bytes.Lines(text) {
			if m.open != l {
				out.WriteString(l.prefix)
			}
			m.open = nil
			out.Write(line)
		}
	}
	m.open = nil
	if !bytes.HasSuffix(text, []byte("\n")) {
		m.open = l
	}
	m.print(out.Bytes())
}

func (m *merger) print(b []byte) {
	if m.err != nil {
		return
	}
	if _, err := m.out.Write(b); err != nil {
		m.err = fmt.Errorf("write the output: %w", err)
	}
}

// harmless is text for a terminal: no escapes, and a line of its own for what would
// write over the line before.
func harmless(text []byte) []byte {
	s := strings.ReplaceAll(string(text), "\r\n", "\n")
	return []byte(printable(strings.ReplaceAll(s, "\r", "\n")))
}

// logLine is a line of output for programs.
type logLine struct {
	Namespace string `json:"namespace"`
	Task      string `json:"task"`
	Run       string `json:"run"`
	Attempt   int    `json:"attempt"`
	Text      string `json:"text"`
	Unended   bool   `json:"unended,omitempty"` // more of the line may follow
}

func (m *merger) writeJSON(out *bytes.Buffer, l *lane, line []byte) {
	text, whole := bytes.CutSuffix(line, []byte("\n"))
	b, err := compact(logLine{l.run.Namespace, l.run.Task, l.run.ID, l.attempt, string(text), !whole})
	if err != nil {
		m.err = fmt.Errorf("write JSON: %w", err)
		return
	}
	out.Write(append(b, '\n'))
}

func (m *merger) endLine() {
	m.print([]byte("\n"))
	m.open = nil
}

// tell is note between lines.
func (m *merger) tell(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open != nil && m.clean && !m.quiet { // both may be one terminal
		m.endLine()
	}
	m.note(format, args...)
}

// announce is say between lines.
func (m *merger) announce(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open != nil && !m.quiet && m.human() {
		m.endLine()
	}
	m.say(format, args...)
}

// failed is why nothing more can be written; nil while it can.
func (m *merger) failed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}
