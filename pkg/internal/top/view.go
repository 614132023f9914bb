package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// The kinds of views.
const (
	viewDetails = iota + 1
	nodeDetails
	why
	logs
	alertList
)

// view is a text about one object, in front of the panes.
type view struct {
	kind  int
	about Target
	under *view     // the view to which esc returns
	asked time.Time // when its contents were requested last
	top   int       // the first visible line
	tail  bool      // stay at the end when lines are added

	list    pane // of alerts
	listed  bool // the alerts have arrived
	details *TaskDetails
	answer  *RunExplanation
	run     task.Run // the run whose output is shown
	written []string
	cut     bool // the beginning was dropped
	note    string
	err     error
	size    int // the number of lines when it was last drawn
	room    int // the number of visible lines when it was last drawn
}

// maxWritten is the maximum number of lines of output in memory.
const maxWritten = 5000

// applyMessage processes an answer, if it belongs to this view.
func (v *view) applyMessage(m *Model, msg Message) {
	switch msg := msg.(type) {
	case TaskDetails:
		if v.kind == viewDetails && v.about == msg.About {
			if v.err = msg.Err; msg.Err == nil {
				v.details = &msg
			}
		}
	case RunExplanation:
		if v.kind == why && v.about == msg.About {
			v.answer, v.err = &msg, msg.Err
		}
	case AlertList:
		if v.kind == alertList {
			if v.err = msg.Err; msg.Err == nil {
				v.listed = true
				v.list.setRows(m.alertRows(msg.Alerts), m.filter)
			}
		}
	case RunOutput:
		if v.kind == logs && v.about == msg.About {
			v.addOutput(msg)
		}
	}
}

// addOutput adds output of a run.
func (v *view) addOutput(w RunOutput) {
	v.err = w.Err

	if w.Err != nil {
		return
	}

	v.run, v.note = w.Run, w.Note
	for line := range strings.Lines(w.Text) {
		if n := len(v.written); n > 0 && !strings.HasSuffix(v.written[n-1], "\n") {
			v.written[n-1] += line
			continue
		}
		v.written = append(v.written, line)
	}

	if n := len(v.written) - maxWritten; n > 0 {
		v.written, v.cut = append([]string(nil), v.written[n:]...), true
	}
}

// taskIsPaused reports whether the task of the view is paused.
func (v *view) taskIsPaused() bool { return v.details != nil && v.details.Task.Paused }

// scrollByKey scrolls. It returns false if the key does not scroll.
func (v *view) scrollByKey(k string, page int) bool {
	switch k {
	case "down", "j":
		v.top++
	case "up", "k":
		v.top--
	case "pgdn", "space", "ctrl-f":
		v.top += page
	case "pgup", "b", "ctrl-b":
		v.top -= page
	case "home", "g":
		v.top = 0
	case "end", "G":
		v.top = v.size
	default:
		return false
	}

	v.top = max(0, min(v.top, v.size-v.room))
	v.tail = v.kind == logs && v.top >= v.size-v.room

	return true
}

// viewKey processes a key while a view is open.
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

	if v.kind == alertList {
		if v.list.moveCursor(k, max(m.height-4, 1)) {
			return nil
		}
		if r := v.list.selectedRow(); r != nil && r.target.isTask() {
			return m.onTarget(k, r.target)
		}
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

	if v.kind != viewDetails && (k == "l" || k == "w") { // replace the current view instead of opening another one on top
		m.view = v.under
	}

	return append(first, m.onTarget(k, v.about)...)
}

// keyHelp returns the keys in the footer.
func (v *view) keyHelp() [][2]string {
	keys := [][2]string{{"esc", "back"}, {"j k", "scroll"}}

	switch v.kind {
	case logs:
		keys = append(keys, [2]string{"f", "follow"}, [2]string{"w", "why"})
	case alertList:
		keys = [][2]string{{"esc", "back"}, {"enter", "details"}, {"a", "acknowledge"}, {"l", "logs"}, {"w", "why"}}
	case why:
		keys = append(keys, [2]string{"l", "logs"})
	case viewDetails:
		p := "pause"
		if v.taskIsPaused() {
			p = "resume"
		}
		keys = append(keys, [2]string{"l", "logs"}, [2]string{"w", "why"}, [2]string{"t", "trigger"}, [2]string{"p", p})
	}

	return append(keys, [2]string{"?", "help"})
}

// drawView draws the view in room lines.
func (v *view) drawView(m *Model, room int) Picture {
	if v.kind == alertList {
		return v.drawAlerts(m, room)
	}

	title, body := v.titleAndText(m)
	if v.err != nil {
		body = append(Picture{{{" " + m.toPrintable(stripControls(v.err.Error())), Red}}, {}}, body...)
	}

	v.size, v.room = len(body), max(room-1, 1)
	last := max(0, v.size-v.room)

	if v.tail {
		v.top = last
	}

	v.top = min(v.top, last)
	head := append(Line{{" ", Bold | Reverse}}, title...)
	for i := range head {
		head[i].Style |= Reverse
	}

	if v.size > v.room && !v.tail {
		at := fmt.Sprintf(" %d%%", min(100, (v.top+v.room)*100/v.size))
		head = append(head.fitColumns(max(m.width-textWidth(at)-1, 1), m.ellipsisText(), Reverse), Span{at + " ", Reverse})
	}

	return append(Picture{head}, body[v.top:min(v.size, v.top+v.room)]...)
}

// titleAndText returns the title and the whole text of the view.
func (v *view) titleAndText(m *Model) (Line, Picture) {
	name := m.taskName(v.about.Namespace, v.about.Task)

	switch v.kind {
	case nodeDetails:
		return Line{{v.about.Node, Bold}}, m.nodeText(v.about.Node)
	case why:
		if v.answer == nil {
			return Line{{"why " + name, Bold}}, m.drawQuestion()
		}
		return Line{{"why " + name, Bold}}, m.whyText(v.answer.Why)
	case logs:
		return v.logText(m, name)
	}

	if v.details == nil {
		if v.err != nil {
			return Line{{name, Bold}}, nil
		}
		return Line{{name, Bold}}, m.drawQuestion()
	}

	return Line{{name, Bold}}, m.taskText(v.details)
}

// drawQuestion draws the placeholder for an answer that has not arrived.
func (m *Model) drawQuestion() Picture { return Picture{{{" " + m.toPrintable("…"), Dim}}} }

// logText returns the title and the text of a view of output.
func (v *view) logText(m *Model, name string) (Line, Picture) {
	title := Line{{"logs " + name, Bold}}
	if v.run.ID != "" {
		look := wording.StateLooks[v.run.State]
		title = append(title, Span{m.toPrintable("  " + v.run.ID + "  " + look.Sign + " " + wording.RunResult(v.run, m.clusterTime())), Plain})
		if v.run.Node != "" {
			title = append(title, Span{" on " + stripControls(v.run.Node), Plain})
		}
	}

	var body Picture
	if v.cut {
		body = append(body, Line{{m.toPrintable(" … earlier output is not shown here: carillon logs"), Dim}})
	}

	for _, l := range v.written {
		body = append(body, m.wrapText(" ", stripControls(strings.TrimRight(strings.ReplaceAll(l, "\t", "    "), "\r\n")), Plain)...)
	}

	switch {
	case v.note != "":
		body = append(body, Line{{" " + m.toPrintable(stripControls(v.note)), Dim}})
	case len(v.written) == 0 && v.run.State.Final():
		body = append(body, Line{{" no output", Dim}})
	case len(v.written) == 0 && v.err == nil:
		body = append(body, m.drawQuestion()...)
	}

	return title, body
}

// wrapText wraps a text into indented lines.
func (m *Model) wrapText(indent, text string, style Style) (p Picture) {
	room := max(m.width-textWidth(indent)-1, 8)

	for {
		part := cutHead(text, room)
		if part == text {
			return append(p, Line{{indent + text, style}})
		}

		if i := strings.LastIndexByte(part, ' '); i > room/2 {
			part = part[:i]
		}

		if part == "" {
			return append(p, Line{{indent + text, style}})
		}

		p = append(p, Line{{indent + part, style}})
		text = strings.TrimPrefix(text[len(part):], " ")
	}
}
