package logs

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
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

// Merger writes the outputs of runs to one stream, whole lines of each, those of
// several tasks behind the task's name. What a terminal might obey is taken out; to
// all else goes what the run wrote, byte by byte.
type Merger struct {
	*factory.Factory
	prefixed bool // lines begin with the task's name
	parts    bool // and with the number of a part: some of the runs are parts
	width    int  // of the names
	clean    bool
	out      io.Writer

	timestamps bool // lines begin with their time
	patient    bool // nothing more comes of a line that is not ended: it need not be shown before its time

	mu   sync.Mutex
	open *streamBuffer // whose line is not ended
	err  error         // why nothing more can be written

	pending      []pendingLine // by their times
	pendingBytes int
	releaseTimer *time.Timer // nil: nothing is held back
}

// NewMerger makes a merger for the outputs of tasks.
func NewMerger(f *factory.Factory, tasks []selection.Ref) *Merger {
	_, tty := f.Terminal(f.Out)
	m := &Merger{Factory: f, prefixed: len(tasks) > 1, clean: tty, out: f.Out}
	for _, r := range tasks {
		m.width = max(m.width, min(len(selection.Show(f, r)), mostPadding))
	}

	return m
}

// RunOutput is one run's way into a merger. One goroutine writes; its fields are the
// merger's.
type RunOutput struct {
	m       *Merger
	prefix  string
	run     task.Run
	attempt int
	streams []*streamBuffer
	timer   *time.Timer
}

// streamBuffer is one stream of a run: its lines are its own, whatever another stream writes
// in their middle.
type streamBuffer struct {
	*RunOutput
	stream string
	held   []byte    // a line that is not ended
	at     task.Time // when it came; zero: that is not known
	last   time.Time // the latest time that it had
}

// numberLines has lines of parts begin with their numbers from now on.
func (m *Merger) numberLines() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.parts = true
}

// Output is where the output of a run goes; a run has one.
func (m *Merger) Output(r task.Run) *RunOutput {
	m.mu.Lock()
	defer m.mu.Unlock()

	l := &RunOutput{m: m, run: r}
	if _, index, is := task.ParentOf(r.ID); m.prefixed || m.parts && is {
		name := selection.Show(m.Factory, selection.Ref{Namespace: r.Namespace, Name: r.Task})
		if is && m.parts {
			name += fmt.Sprintf("[%d]", index)
		}
		l.prefix = m.Paint(colourOf(r), fmt.Sprintf("%-*s |", m.width, name)) + " "
	}

	return l
}

// colourOf is a task's colour, the same at any time.
func colourOf(r task.Run) output.Color {
	colours := []output.Color{"36", "32", "33", "35", "34", "96", "92", "93", "95", "94"}
	h := fnv.New32a()
	_, _ = h.Write([]byte(r.Namespace + "/" + r.Task)) // never fails

	return colours[h.Sum32()%uint32(len(colours))]
}

// Write takes what the attempt wrote. An error is the merger's stream's.
func (l *RunOutput) Write(b []byte) (int, error) {
	return len(b), l.addPiece(client.LogPiece{Text: b})
}

// addPiece is Write of what is known to have come at a time, and by a stream.
func (l *RunOutput) addPiece(p client.LogPiece) error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()

	s := l.bufferOf(p.Stream)
	if len(s.held) == 0 {
		s.at = p.Time
	}

	s.held = append(s.held, p.Text...)
	s.writeFirst(bytes.LastIndexByte(s.held, '\n') + 1)

	switch {
	case len(s.held) >= mostUnended:
		s.flushPending()
	case len(s.held) > 0 && l.m.Format != output.FormatJSONL && !l.m.patient:
		if l.timer == nil {
			l.timer = time.AfterFunc(unendedFor, l.flushLate)
		} else {
			l.timer.Reset(unendedFor)
		}
	}

	return l.m.err
}

func (l *RunOutput) bufferOf(stream string) *streamBuffer {
	for _, s := range l.streams {
		if s.stream == stream {
			return s
		}
	}

	s := &streamBuffer{RunOutput: l, stream: stream}
	l.streams = append(l.streams, s) // few: a server that made up names would have its answer cut by nobody but its user

	return s
}

func (l *RunOutput) flushLate() {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	for _, s := range l.streams {
		s.flushPending()
	}
}

// endOutput says that the attempt writes nothing more.
func (l *RunOutput) endOutput() {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()

	if l.timer != nil {
		l.timer.Stop()
	}

	for _, s := range l.streams {
		s.writeFirst(len(s.held))
	}

	l.m.releaseTo(func(u pendingLine) bool { return u.s.RunOutput == l })

	for _, s := range l.streams {
		if l.m.open == s && (l.prefix != "" || l.m.timestamps) {
			l.m.endLine()
		}
	}
}

// flushPending writes what is held back, but for a character of which a part is missing,
// or what may be half an end of a line.
func (s *streamBuffer) flushPending() {
	n := len(s.held)
	for i := 1; i < utf8.UTFMax && i <= n; i++ {
		if b := s.held[n-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(s.held[n-i:]) {
				n -= i
			}
			break
		}
	}

	if n > 0 && s.held[n-1] == '\r' {
		n--
	}

	s.writeFirst(n)
}

// writeFirst writes the first n bytes of what is held back.
func (s *streamBuffer) writeFirst(n int) {
	if n == 0 || s.m.err != nil {
		return
	}

	s.m.enqueueOutput(s, s.held[:n])

	if s.held = append(s.held[:0], s.held[n:]...); cap(s.held) > 4*mostUnended {
		s.held = bytes.Clone(s.held)
	}
}

// writeOutput writes what a stream has printed at a time.
func (m *Merger) writeOutput(s *streamBuffer, at task.Time, text []byte) {
	var out bytes.Buffer

	if m.Format == output.FormatJSONL {
		for line := range bytes.Lines(text) {
			m.writeJSON(&out, s, at, line)
		}
		m.printBytes(out.Bytes())
		return
	}

	if m.open != nil && m.open != s {
		out.WriteByte('\n')
		m.open = nil
	}

	if m.clean {
		text = sanitizeOutput(text)
	}

	if s.prefix == "" && !m.timestamps {
		out.Write(text)
	} else {
		for line := range bytes.Lines(text) {
			if m.open != s {
				out.WriteString(s.prefix)
				out.WriteString(m.formatTimestamp(at))
			}

			m.open = nil
			out.Write(line)
		}
	}

	m.open = nil
	if !bytes.HasSuffix(text, []byte("\n")) {
		m.open = s
	}

	m.printBytes(out.Bytes())
}

// wantsTimes reports whether the times of lines are wanted: to show, or to merge by.
func (m *Merger) wantsTimes() bool {
	return m.timestamps || m.Format == output.FormatJSONL || m.patient && (m.prefixed || m.parts)
}

// wantsTimes reports whether the times of its lines are wanted.
func (l *RunOutput) wantsTimes() bool { return l.m.wantsTimes() || l.prefix != "" }

// stampLayout is as long for every time in one zone, but where its offset changes
// from none.
const stampLayout = "2006-01-02T15:04:05.000Z07:00"

// formatTimestamp is what stands before a line with --timestamps.
func (m *Merger) formatTimestamp(at task.Time) string {
	if !m.timestamps {
		return ""
	}
	if at.IsZero() {
		return m.Paint(output.Dim, fmt.Sprintf("%-*s", len(m.Now().In(m.Zone(output.ReaderZone)).Format(stampLayout)), "-")) + " "
	}

	return m.Paint(output.Dim, at.In(m.Zone(output.ReaderZone)).Format(stampLayout)) + " "
}

func (m *Merger) printBytes(b []byte) {
	if m.err != nil {
		return
	}

	if _, err := m.out.Write(b); err != nil {
		m.err = fmt.Errorf("write the output: %w", err)
	}
}

// sanitizeOutput is text for a terminal: no escapes, and a line of its own for what would
// write over the line before.
func sanitizeOutput(text []byte) []byte {
	s := strings.ReplaceAll(string(text), "\r\n", "\n")
	return []byte(output.Sanitize(strings.ReplaceAll(s, "\r", "\n")))
}

// logLine is a line of output for programs.
type logLine struct {
	Namespace string    `json:"namespace"`
	Task      string    `json:"task"`
	Run       string    `json:"run"`
	Attempt   int       `json:"attempt"`
	Time      task.Time `json:"time,omitzero"`
	Stream    string    `json:"stream,omitempty"`
	Text      *string   `json:"text,omitempty"`
	Base64    []byte    `json:"base64,omitempty"`  // what is not UTF-8
	Unended   bool      `json:"unended,omitempty"` // more of the line may follow
}

func (m *Merger) writeJSON(out *bytes.Buffer, s *streamBuffer, at task.Time, line []byte) {
	text, whole := bytes.CutSuffix(line, []byte("\n"))
	v := logLine{Namespace: s.run.Namespace, Task: s.run.Task, Run: s.run.ID, Attempt: s.attempt, Time: at, Stream: s.stream, Unended: !whole}
	if utf8.Valid(text) {
		v.Text = new(string(text))
	} else {
		v.Base64 = text
	}

	b, err := output.CompactJSON(v)
	if err != nil {
		m.err = fmt.Errorf("write JSON: %w", err)
		return
	}

	if m.clean {
		b = output.SanitizeJSON(b)
	}

	out.Write(append(b, '\n'))
}

func (m *Merger) endLine() {
	m.printBytes([]byte("\n"))
	m.open = nil
}

// Tell is note between lines.
func (m *Merger) Tell(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.open != nil && m.clean && !m.Quiet { // both may be one terminal
		m.endLine()
	}

	m.Note(format, args...)
}

// Announce is say between lines.
func (m *Merger) Announce(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.open != nil && !m.Quiet && m.ForPeople() {
		m.endLine()
	}

	m.Say(format, args...)
}

// writeError is why nothing more can be written; nil while it can.
func (m *Merger) writeError() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}
