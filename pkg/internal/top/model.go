// Package top is the screen of "carillon top". It shows problems, future ticks, active runs and nodes, and
// keeps them up to date.
//
// The Model is pure. It receives messages (a key, a new size, a board, an answer), updates its state, draws
// that state as lines of styled text, and returns commands for what must be done. It depends on no terminal,
// clock or network. A Program executes the commands with a client and a terminal.
//
//	keys, sizes ─┐                    ┌─► Picture ─► terminal
//	boards ──────┼─► Model.Update ────┤
//	answers ─────┘                    └─► commands ─► client ─► answers
//
// The screen costs the cluster one board per second, plus what the user requests with a key. Nodes make a board
// from memory, at most every 0.7 s, however many screens are open. The screen follows no events, because for
// a stream of events the server reads every revision of etcd, which is far more than a screen needs.
package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/task"
)

// Config defines the appearance of the screen.
type Config struct {
	Namespace string // tasks in this namespace are shown without it
	Filter    string // the initial filter
	ASCII     bool
	Zone      *time.Location // the time zone of displayed times; nil means UTC
}

// The panes in their order.
const (
	paneProblems = iota
	coming
	running
	nodes
	panes
)

// Model is the state of the screen. Create it with New.
type Model struct {
	cfg           Config
	width, height int
	now           time.Time

	board    task.Board
	problems []overview.Group     // of the board
	got      time.Time            // when the board arrived, by the local clock; zero: not yet
	server   string               // the server that sent it
	away     error                // why no boards arrive; nil: they do
	gone     time.Time            // since when no boards arrive
	seen     map[string]time.Time // by node: when it disappeared from the board; zero: it is present

	panes  [panes]pane
	focus  int
	filter string

	typing  bool      // the user is typing the filter
	ask     *question // a question that waits for an answer; nil: none
	pausing *Target   // the task that the user wants to pause or resume; nil: none
	notice  string    // the result of the last change
	noticed time.Time
	bad     bool // the last change has failed

	view *view // the text in front of the panes; nil: none
	help bool
}

// question is a question, with the command to execute after "yes".
type question struct {
	words string
	then  Command
}

// New returns a Model without data.
func New(cfg Config) *Model {
	if cfg.Zone == nil {
		cfg.Zone = time.UTC
	}
	return &Model{cfg: cfg, width: 80, height: 24, seen: map[string]time.Time{}, filter: cfg.Filter}
}

// Update processes a message, and returns the commands to execute.
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
	case BoardUpdate:
		m.applyBoard(msg)
	case ActionResult:
		m.setStatus(msg.Words, msg.Err)
		return append(m.refreshCommands(), Refresh{})
	case TaskDetails, RunExplanation, RunOutput, AlertList:
		if details, ok := msg.(TaskDetails); ok && m.pausing != nil && details.About == *m.pausing {
			m.pausing = nil
			m.askPause(details)
		}

		if m.view != nil {
			m.view.applyMessage(m, msg)
		}
	case Key:
		return m.handleKey(string(msg))
	}

	return nil
}

// applyBoard stores a board, or records that the server does not answer.
func (m *Model) applyBoard(b BoardUpdate) {
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

// clusterTime returns the current time by the cluster's clock, which may differ from the local clock.
func (m *Model) clusterTime() time.Time { return m.board.At.Add(m.now.Sub(m.got)) }

// setStatus shows the result of a change in the footer.
func (m *Model) setStatus(words string, err error) {
	m.notice, m.noticed, m.bad = words, m.now, err != nil
	if err != nil {
		m.notice = words + ": " + err.Error()
	}
}

// refreshCommands requests the contents of the current view again from time to time.
func (m *Model) refreshCommands() []Command {
	v := m.view
	if v == nil || m.now.Sub(v.asked) < 2*time.Second {
		return nil
	}

	switch v.kind {
	case viewDetails:
		v.asked = m.now
		return []Command{ReadTask{v.about}}
	case alertList:
		v.asked = m.now
		return []Command{ReadAlerts{}}
	}

	return nil
}

// handleKey processes a key.
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
	case "A":
		m.view = &view{kind: alertList, asked: m.now}
		return []Command{ReadAlerts{}}
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

// pageSize returns by how many rows page up and page down move.
func (m *Model) pageSize() int { return max(m.panes[m.focus].lines-1, 1) }

// selectedTarget returns the target of the row under the cursor.
func (m *Model) selectedTarget() Target {
	if r := m.panes[m.focus].selectedRow(); r != nil {
		return r.target
	}
	return Target{}
}

// onTarget processes a key that applies to a task or a node.
func (m *Model) onTarget(k string, t Target) []Command {
	if !strings.Contains("enter l w t p a ", k+" ") {
		return nil
	}

	if !t.isTask() {
		switch r := m.panes[m.focus].selectedRow(); {
		case k != "enter":
			m.setStatus("this row has no task", nil)
		case t.Node != "":
			m.view = &view{kind: nodeDetails, about: t}
		case r != nil && r.hint != "":
			m.setStatus(r.hint, nil)
		}

		return nil
	}

	switch k {
	case "enter":
		m.view = &view{kind: viewDetails, about: t, asked: m.now, under: m.view}
		return []Command{ReadTask{t}}
	case "w":
		m.view = &view{kind: why, about: t, under: m.view}
		return []Command{AskWhy{t}}
	case "l":
		m.view = &view{kind: logs, about: t, tail: true, under: m.view}
		return []Command{FollowLogs{t}}
	case "t":
		m.ask = &question{fmt.Sprintf("run %s now?", m.taskName(t.Namespace, t.Task)), Trigger{t}}
	case "a":
		m.ask = &question{fmt.Sprintf("acknowledge the alerts of %s? They are not sent again while they stay open.", m.taskName(t.Namespace, t.Task)), Acknowledge{t}}
	case "p":
		m.pausing = &t // the question depends on whether the task is paused, so its state is read first
		return []Command{ReadTask{t}}
	}

	return nil
}

// askPause asks whether to pause or to resume a task.
func (m *Model) askPause(told TaskDetails) {
	t := told.About
	name := m.taskName(t.Namespace, t.Task)

	switch {
	case told.Err != nil:
		m.setStatus("could not read "+name, told.Err)
	case told.Task.Paused:
		m.ask = &question{fmt.Sprintf("resume %s? Its ticks continue from now.", name), Resume{t}}
	default:
		m.ask = &question{fmt.Sprintf("pause %s? Its ticks stop; active runs continue.", name), Pause{t}}
	}
}

// handleAnswer processes the answer to a question: y means yes, any other key no.
func (m *Model) handleAnswer(k string) []Command {
	ask := m.ask
	m.ask = nil

	if k != "y" && k != "Y" {
		m.setStatus("nothing was changed", nil)
		return nil
	}

	return []Command{ask.then}
}

// editFilter processes a key while the user types the filter.
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

// taskName returns the name of a task, with its namespace unless that is the default.
func (m *Model) taskName(namespace, name string) string {
	if namespace == m.cfg.Namespace || namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// toPrintable returns a text of this package in a form that the terminal supports.
func (m *Model) toPrintable(s string) string {
	if m.cfg.ASCII {
		return withoutSymbols(s)
	}
	return s
}

// ellipsisText returns the mark for text that was cut.
func (m *Model) ellipsisText() string {
	if m.cfg.ASCII {
		return "~"
	}
	return "…"
}

// Message is an input of the Model.
type Message interface{ isMessage() }

// The types of messages.
type (
	// Key is a key that was pressed: the character itself, or enter, esc, tab, backtab, up, down, left, right,
	// pgup, pgdn, home, end, backspace, ctrl-c.
	Key string
	// Size is the size of the terminal in columns and lines.
	Size struct{ Width, Height int }
	// Clock is the current time. The Model has no other source of time.
	Clock time.Time
	// BoardUpdate is a board, or the error instead of it, and the server.
	BoardUpdate struct {
		Board  task.Board
		Err    error
		Server string
	}
	// TaskDetails contains the details of a task, or the error instead of them.
	TaskDetails struct {
		About Target
		Task  client.Task
		Runs  []task.Run
		Next  []client.Occurrence
		Why   task.Answer
		Err   error
	}
	// RunExplanation is the explanation of a run, or the error instead of it.
	RunExplanation struct {
		About Target
		Why   task.Answer
		Err   error
	}
	// RunOutput is further output of a run.
	RunOutput struct {
		About Target
		Run   task.Run
		Text  string
		Note  string // a remark about the output, not part of it
		Err   error
	}
	// AlertList contains the open alerts, or the error instead of them.
	AlertList struct {
		Alerts []task.AlertStatus
		Err    error
	}
	// ActionResult is the result of a change.
	ActionResult struct {
		Words string
		Err   error
	}
)

func (Key) isMessage()            {}
func (Size) isMessage()           {}
func (Clock) isMessage()          {}
func (BoardUpdate) isMessage()    {}
func (TaskDetails) isMessage()    {}
func (RunExplanation) isMessage() {}
func (RunOutput) isMessage()      {}
func (AlertList) isMessage()      {}
func (ActionResult) isMessage()   {}

// Command is something that the Program must do.
type Command interface{ isCommand() }

// The types of commands.
type (
	// Quit ends the screen.
	Quit struct{}
	// Refresh requests a new board at once.
	Refresh struct{}
	// ReadTask requests a TaskDetails.
	ReadTask struct{ About Target }
	// AskWhy requests a RunExplanation.
	AskWhy struct{ About Target }
	// FollowLogs requests messages of type RunOutput until StopLogs.
	FollowLogs struct{ About Target }
	// StopLogs ends FollowLogs.
	StopLogs struct{}
	// ReadAlerts requests an AlertList.
	ReadAlerts struct{}
	// Trigger, Pause and Resume change a task, and Acknowledge its open alerts. The result is an ActionResult.
	Trigger     struct{ Of Target }
	Pause       struct{ Of Target }
	Resume      struct{ Of Target }
	Acknowledge struct{ Of Target }
)

func (Quit) isCommand()        {}
func (Refresh) isCommand()     {}
func (ReadTask) isCommand()    {}
func (AskWhy) isCommand()      {}
func (FollowLogs) isCommand()  {}
func (StopLogs) isCommand()    {}
func (Trigger) isCommand()     {}
func (Pause) isCommand()       {}
func (Resume) isCommand()      {}
func (ReadAlerts) isCommand()  {}
func (Acknowledge) isCommand() {}

// Target is the object of a row: a task, one of its runs, or a node.
type Target struct {
	Namespace, Task string
	Run             string
	Node            string
}

// isTask reports whether the target is a task or a run.
func (t Target) isTask() bool { return t.Task != "" }
