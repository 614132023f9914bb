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
	// maxUnended is the maximum size of an incomplete line that is held back, and unendedFor the maximum time.
	// The user must see a prompt or a growing row of dots while it grows.
	maxUnended = 16 << 10
	unendedFor = 200 * time.Millisecond
	// maxPadding is the maximum width to which the names of tasks are padded.
	maxPadding = 24
)

// Merger writes the outputs of several runs to one stream in whole lines. With several tasks, each line begins
// with the name of its task. On a terminal, control sequences are removed. Any other destination receives
// exactly the bytes that the run printed.
type Merger struct {
	*factory.Factory
	prefixed bool // lines begin with the name of the task
	parts    bool // lines also begin with the number of the part, because some of the runs are parts
	width    int  // the width to which names are padded
	clean    bool // remove control sequences
	out      io.Writer

	timestamps bool // lines begin with their time
	patient    bool // all output exists already, so an incomplete line need not be printed early

	mu   sync.Mutex
	open *streamBuffer // the buffer whose incomplete line was printed last; nil: the last line is complete
	err  error         // why nothing more can be written

	told map[string]bool // messages that apply to many runs and were printed

	pending      []pendingLine // sorted by time
	pendingBytes int
	releaseTimer *time.Timer // nil: no lines are held back
}

// NewMerger returns a merger for the outputs of tasks.
func NewMerger(f *factory.Factory, tasks []selection.Ref) *Merger {
	_, tty := f.Terminal(f.Out)
	m := &Merger{Factory: f, prefixed: len(tasks) > 1, clean: tty, out: f.Out}
	for _, r := range tasks {
		m.width = max(m.width, min(len(selection.Show(f, r)), maxPadding))
	}

	return m
}

// RunOutput is the input of one run into a merger. Only one goroutine may write to it. Its fields are protected
// by the merger's mutex.
type RunOutput struct {
	m       *Merger
	prefix  string
	run     task.Run
	attempt int
	streams []*streamBuffer
	timer   *time.Timer
}

// streamBuffer buffers one stream of a run, so that lines of the other stream do not split its lines.
type streamBuffer struct {
	*RunOutput
	stream string
	held   []byte    // the incomplete line
	at     task.Time // the arrival time of the incomplete line; zero if unknown
	last   time.Time // the latest time of its lines so far
}

// numberLines makes lines of parts begin with the number of the part from now on.
func (m *Merger) numberLines() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.parts = true
}

// Output returns the RunOutput of a run. It must be called once for each run.
func (m *Merger) Output(r task.Run) *RunOutput {
	m.mu.Lock()
	defer m.mu.Unlock()

	l := &RunOutput{m: m, run: r}
	if _, index, ok := task.ParentOf(r.ID); m.prefixed || m.parts && ok {
		name := selection.Show(m.Factory, selection.Ref{Namespace: r.Namespace, Name: r.Task})
		if ok && m.parts {
			name += partLabel(r, index)
		}
		l.prefix = m.Paint(colourOf(r), fmt.Sprintf("%-*s |", m.width, name)) + " "
	}

	return l
}

// partLabel names a part in front of its lines: its number, or its step.
func partLabel(r task.Run, index int) string {
	if step := r.StepName(); step != "" {
		return "[" + output.OneLine(step) + "]"
	}
	return fmt.Sprintf("[%d]", index)
}

// colourOf returns the color of a task's name. It is derived from the name, so it is always the same.
func colourOf(r task.Run) output.Color {
	colours := []output.Color{"36", "32", "33", "35", "34", "96", "92", "93", "95", "94"}
	h := fnv.New32a()
	_, _ = h.Write([]byte(r.Namespace + "/" + r.Task)) // never returns an error

	return colours[h.Sum32()%uint32(len(colours))]
}

// Write implements io.Writer. An error is that of the merger's stream.
func (r *RunOutput) Write(b []byte) (int, error) {
	return len(b), r.addPiece(client.LogPiece{Text: b})
}

// addPiece adds output with its arrival time and its stream.
func (r *RunOutput) addPiece(p client.LogPiece) error {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()

	s := r.bufferOf(p.Stream)
	if len(s.held) == 0 {
		s.at = p.Time
	}

	s.held = append(s.held, p.Text...)
	s.writeFirst(bytes.LastIndexByte(s.held, '\n') + 1)

	switch {
	case len(s.held) >= maxUnended:
		s.flushPending()
	case len(s.held) > 0 && r.m.Format != output.FormatJSONL && !r.m.patient:
		if r.timer == nil {
			r.timer = time.AfterFunc(unendedFor, r.flushLate)
		} else {
			r.timer.Reset(unendedFor)
		}
	}

	return r.m.err
}

// bufferOf returns the buffer of a stream.
func (r *RunOutput) bufferOf(stream string) *streamBuffer {
	for _, s := range r.streams {
		if s.stream == stream {
			return s
		}
	}

	s := &streamBuffer{RunOutput: r, stream: stream}
	r.streams = append(r.streams, s) // there are at most two, unless the server sends other names

	return s
}

// flushLate prints incomplete lines that were held back for unendedFor.
func (r *RunOutput) flushLate() {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	for _, s := range r.streams {
		s.flushPending()
	}
}

// endOutput prints what is held back. Nothing may be written to r afterwards.
func (r *RunOutput) endOutput() {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()

	if r.timer != nil {
		r.timer.Stop()
	}

	for _, s := range r.streams {
		s.writeFirst(len(s.held))
	}

	r.m.releaseTo(func(u pendingLine) bool { return u.s.RunOutput == r })

	for _, s := range r.streams {
		if r.m.open == s && (r.prefix != "" || r.m.timestamps) {
			r.m.endLine()
		}
	}
}

// flushPending prints the incomplete line, except for an incomplete UTF-8 character and a carriage return that
// may be the first half of a line end.
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

// writeFirst prints the first n bytes of the incomplete line.
func (s *streamBuffer) writeFirst(n int) {
	if n == 0 || s.m.err != nil {
		return
	}

	s.m.enqueueOutput(s, s.held[:n])

	// A long line must not keep its buffer allocated.
	if s.held = append(s.held[:0], s.held[n:]...); cap(s.held) > 4*maxUnended {
		s.held = bytes.Clone(s.held)
	}
}

// writeOutput prints text of a stream with its arrival time.
func (m *Merger) writeOutput(s *streamBuffer, at task.Time, text []byte) {
	var out bytes.Buffer

	if m.Format == output.FormatJSONL {
		for line := range bytes.Lines(text) {
			m.writeJSON(&out, s, at, line)
		}
		m.printBytes(out.Bytes())
		return
	}

	// An incomplete line of another stream is ended first, so that lines are not mixed.
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
		// A new line begins with the prefix and the time. The continuation of a line does not repeat them.
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

// wantsTimes reports whether arrival times are needed, to print them or to merge by them.
func (m *Merger) wantsTimes() bool {
	return m.timestamps || m.Format == output.FormatJSONL || m.patient && (m.prefixed || m.parts)
}

// wantsTimes reports whether arrival times are needed for this run.
func (r *RunOutput) wantsTimes() bool { return r.m.wantsTimes() || r.prefix != "" }

// stampLayout has the same width for all times of one time zone, unless its offset changes to or from zero.
const stampLayout = "2006-01-02T15:04:05.000Z07:00"

// formatTimestamp returns the time at the beginning of a line with --timestamps.
func (m *Merger) formatTimestamp(at task.Time) string {
	if !m.timestamps {
		return ""
	}
	if at.IsZero() {
		return m.Paint(output.Dim, fmt.Sprintf("%-*s", len(m.Now().In(m.Zone(output.ReaderZone)).Format(stampLayout)), "-")) + " "
	}

	return m.Paint(output.Dim, at.In(m.Zone(output.ReaderZone)).Format(stampLayout)) + " "
}

// printBytes writes to the stream, and remembers the first error.
func (m *Merger) printBytes(b []byte) {
	if m.err != nil {
		return
	}

	if _, err := m.out.Write(b); err != nil {
		m.err = fmt.Errorf("write the output: %w", err)
	}
}

// sanitizeOutput returns text for a terminal, without control sequences. A carriage return begins a new line
// instead of overwriting the current one.
func sanitizeOutput(text []byte) []byte {
	s := strings.ReplaceAll(string(text), "\r\n", "\n")
	return []byte(output.Sanitize(strings.ReplaceAll(s, "\r", "\n")))
}

// logLine is one line of output for programs.
type logLine struct {
	Namespace string    `json:"namespace"`
	Task      string    `json:"task"`
	Run       string    `json:"run"`
	Attempt   int       `json:"attempt"`
	Time      task.Time `json:"time,omitzero"`
	Stream    string    `json:"stream,omitempty"`
	Text      *string   `json:"text,omitempty"`
	Base64    []byte    `json:"base64,omitempty"`  // text that is not UTF-8
	Unended   bool      `json:"unended,omitempty"` // the line may continue in another object
}

// writeJSON prints a line as JSON.
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

// endLine completes the current line.
func (m *Merger) endLine() {
	m.printBytes([]byte("\n"))
	m.open = nil
}

// Tell prints a message to stderr, between lines of output.
func (m *Merger) Tell(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.open != nil && m.clean && !m.Quiet { // both streams may be the same terminal
		m.endLine()
	}

	m.Note(format, args...)
}

// tellOnce is like Tell for a message that applies to many runs, and does nothing if it was printed before.
func (m *Merger) tellOnce(message string) {
	m.mu.Lock()
	told := m.told[message]
	if m.told == nil {
		m.told = map[string]bool{}
	}
	m.told[message] = true
	m.mu.Unlock()

	if !told {
		m.Tell("%s", message)
	}
}

// Announce prints a message to stdout, between lines of output.
func (m *Merger) Announce(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.open != nil && !m.Quiet && m.ForPeople() {
		m.endLine()
	}

	m.Say(format, args...)
}

// writeError returns why nothing more can be written, or nil.
func (m *Merger) writeError() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}
