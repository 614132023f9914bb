package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Config says how the screen looks.
type Config struct {
	Namespace string // tasks of it are shown without it
	Filter    string // what rows have to contain, at first
	ASCII     bool
	Zone      *time.Location // in which times of day are shown; nil is UTC
}

// The panes, in their order.
const (
	paneProblems = iota
	coming
	running
	nodes
	panes
)

// A Model is the state of the screen. The zero Model is none: use New.
type Model struct {
	cfg           Config
	width, height int
	now           time.Time

	board  task.Board
	got    time.Time            // when the board came, by the clock of whoever looks; zero: none yet
	server string               // from where
	away   error                // why no board comes; nil: they do
	gone   time.Time            // since when
	seen   map[string]time.Time // nodes that were there, and when they were missed; zero: they are there

	panes  [panes]pane
	focus  int
	filter string

	typing  bool    // the filter is being typed
	ask     *asking // a question that waits for y
	pausing *Target // a task that the user wants to pause, or to resume; nil: none
	notice  string  // what became of the last change
	noticed time.Time
	bad     bool // it went wrong

	view *view // over the panes; nil: none
	help bool
}

// asking is a question, and what a yes leads to.
type asking struct {
	words string
	then  Command
}

// New makes a Model that has nothing to show yet.
func New(cfg Config) *Model {
	if cfg.Zone == nil {
		cfg.Zone = time.UTC
	}
	return &Model{cfg: cfg, width: 80, height: 24, seen: map[string]time.Time{}, filter: cfg.Filter}
}

// Update takes a message, and returns what is to be done.
func (m *Model) Update(msg Message) []Command {
	switch msg := msg.(type) {
	case Size:
		m.width, m.height = max(msg.Width, 1), max(msg.Height, 1)
	case Clock:
		m.now = time.Time(msg)
		if m.notice != "" && m.now.Sub(m.noticed) > 8*time.Second {
			m.notice = ""
		}

		m.fillRows()

		return m.refreshCommands()
	case Boarded:
		m.applyBoard(msg)
	case Done:
		m.setStatus(msg.Words, msg.Err)
		return append(m.refreshCommands(), Refresh{})
	case Told, Answered, Written:
		if told, ok := msg.(Told); ok && m.pausing != nil && told.About == *m.pausing {
			m.pausing = nil
			m.askPause(told)
		}

		if m.view != nil {
			m.view.applyMessage(m, msg)
		}
	case Key:
		return m.handleKey(string(msg))
	}

	return nil
}

func (m *Model) applyBoard(b Boarded) {
	if b.Err != nil {
		if m.away == nil {
			m.gone = m.now
		}
		m.away, m.server = b.Err, b.Server
		return
	}

	m.away, m.server, m.got = nil, b.Server, m.now
	here := map[string]bool{}
	for _, n := range b.Board.Nodes {
		here[n.Name] = true
		m.seen[n.Name] = time.Time{}
	}

	for name, missed := range m.seen {
		if !here[name] && missed.IsZero() {
			m.seen[name] = m.now
		}
	}

	m.board = b.Board
	m.fillRows()
}

// clusterTime is what time it is for the cluster: its clock may be another than that of
// whoever looks.
func (m *Model) clusterTime() time.Time { return m.board.At.Add(m.now.Sub(m.got)) }

func (m *Model) setStatus(words string, err error) {
	m.notice, m.noticed, m.bad = words, m.now, err != nil
	if err != nil {
		m.notice = words + ": " + err.Error()
	}
}

// refreshCommands asks anew for what the view shows, now and then.
func (m *Model) refreshCommands() []Command {
	if m.view == nil || m.view.kind != viewDetails || m.now.Sub(m.view.asked) < 2*time.Second {
		return nil
	}
	m.view.asked = m.now
	return []Command{Tell{m.view.about}}
}

// handleKey does what a key says.
func (m *Model) handleKey(k string) []Command {
	if k == "ctrl-c" {
		return []Command{Quit{}}
	}

	switch {
	case m.help:
		m.help = false
		return nil
	case m.ask != nil:
		return m.handleAnswer(k)
	case m.typing:
		m.editFilter(k)
		return nil
	case m.view != nil:
		return m.viewKey(k)
	}

	switch k {
	case "esc":
		m.filter, m.notice = "", ""
		m.fillRows()
		return nil
	case "q":
		return []Command{Quit{}}
	case "tab", "right":
		m.focus = (m.focus + 1) % panes
	case "backtab", "left":
		m.focus = (m.focus + panes - 1) % panes
	case "1", "2", "3", "4":
		m.focus = int(k[0] - '1')
	case "/":
		m.typing = true
	case "?":
		m.help = true
	case "r":
		return []Command{Refresh{}}
	default:
		if m.panes[m.focus].moveCursor(k, m.pageSize()) {
			return nil
		}
		return m.onTarget(k, m.selectedTarget())
	}

	return nil
}

// pageSize is how many rows page up and page down move.
func (m *Model) pageSize() int { return max(m.panes[m.focus].lines-1, 1) }

// selectedTarget is what the row under the cursor is about.
func (m *Model) selectedTarget() Target {
	if r := m.panes[m.focus].selectedRow(); r != nil {
		return r.target
	}
	return Target{}
}

// onTarget does what a key says with a task or a node.
func (m *Model) onTarget(k string, t Target) []Command {
	if !strings.Contains("enter l w t p ", k+" ") {
		return nil
	}

	if !t.isTask() {
		if k == "enter" && t.Node != "" {
			m.view = &view{kind: nodeDetails, about: t}
		} else if k != "enter" || t != (Target{}) {
			m.setStatus("this row is about no task", nil)
		}

		return nil
	}

	switch k {
	case "enter":
		m.view = &view{kind: viewDetails, about: t, asked: m.now, under: m.view}
		return []Command{Tell{t}}
	case "w":
		m.view = &view{kind: why, about: t, under: m.view}
		return []Command{AskWhy{t}}
	case "l":
		m.view = &view{kind: logs, about: t, tail: true, under: m.view}
		return []Command{FollowLogs{t}}
	case "t":
		m.ask = &asking{fmt.Sprintf("run %s now?", m.taskName(t.Namespace, t.Task)), Trigger{t}}
	case "p":
		m.pausing = &t // what to ask depends on whether it is paused
		return []Command{Tell{t}}
	}

	return nil
}

// askPause asks whether a task is to be paused or resumed.
func (m *Model) askPause(told Told) {
	t := told.About
	name := m.taskName(t.Namespace, t.Task)

	switch {
	case told.Err != nil:
		m.setStatus("could not look at "+name, told.Err)
	case told.Task.Paused:
		m.ask = &asking{fmt.Sprintf("resume %s? Its ticks go on from now.", name), Resume{t}}
	default:
		m.ask = &asking{fmt.Sprintf("pause %s? Its ticks stop, what runs goes on.", name), Pause{t}}
	}
}

// handleAnswer takes the answer to a question: y is yes, everything else no.
func (m *Model) handleAnswer(k string) []Command {
	ask := m.ask
	m.ask = nil

	if k != "y" && k != "Y" {
		m.setStatus("nothing was changed", nil)
		return nil
	}

	return []Command{ask.then}
}

// editFilter takes a key of the filter.
func (m *Model) editFilter(k string) {
	switch {
	case k == "enter":
		m.typing = false
	case k == "esc":
		m.typing, m.filter = false, ""
	case k == "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	case k == "space":
		m.filter += " "
	case len([]rune(k)) == 1 && len(m.filter) < 100:
		m.filter += k
	}

	m.fillRows()
}

// viewKey does what a key says in a view.
func (m *Model) viewKey(k string) []Command {
	v := m.view

	switch k {
	case "esc", "q", "left":
		m.view = v.under
		if v.kind == logs {
			return []Command{StopLogs{}}
		}
		return nil
	case "?":
		m.help = true
		return nil
	case "f":
		v.tail = v.kind == logs
		return nil
	}

	if v.scrollByKey(k, max(m.height-4, 1)) {
		return nil
	}
	if v.kind == nodeDetails || v.kind == logs && k == "l" || v.kind == why && k == "w" || k == "enter" {
		return nil
	}

	var first []Command
	if v.kind == logs && (k == "w") {
		first = []Command{StopLogs{}}
	}

	if v.kind != viewDetails && (k == "l" || k == "w") { // beside each other, not on top
		m.view = v.under
	}

	return append(first, m.onTarget(k, v.about)...)
}

// taskName is a task's, with its namespace unless that goes without saying.
func (m *Model) taskName(namespace, name string) string {
	if namespace == m.cfg.Namespace || namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// toPrintable is a text of ours, as the terminal can show it.
func (m *Model) toPrintable(s string) string {
	if m.cfg.ASCII {
		return withoutSymbols(s)
	}
	return s
}

// ellipsisText says that a text goes on.
func (m *Model) ellipsisText() string {
	if m.cfg.ASCII {
		return "~"
	}
	return "…"
}
