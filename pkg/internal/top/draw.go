package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// minPaneWidth and minPaneHeight are the size below which only one pane is shown.
	minPaneWidth, minPaneHeight = 50, 18
	// minBrandWidth is the width below which the header omits the name of the program.
	minBrandWidth = 100
	// minSideBySideWidth is the width from which panes are shown side by side.
	minSideBySideWidth = 140
	// staleAfter is the age from which a board counts as outdated.
	staleAfter = 4 * time.Second
)

// View draws the screen. The result has exactly the height and width of the terminal.
func (m *Model) View() Picture {
	var body Picture
	top := m.drawHeader()
	switch room := m.height - len(top) - 1; {
	case m.help:
		body = m.helpText()
	case m.view != nil:
		body = m.view.drawView(m, room)
	case m.got.IsZero():
		body = Picture{{}, {{" " + m.toPrintable(m.waitingWords()), Plain}}}
	case m.width < minPaneWidth || m.height < minPaneHeight:
		body = m.drawFocused(room)
	case m.width >= minSideBySideWidth:
		body = m.sideBySide(room)
	default:
		body = m.drawStacked(m.width, room, paneProblems, coming, running, nodes)
	}

	room := max(m.height-len(top)-1, 0)
	for len(body) < room {
		body = append(body, Line{})
	}

	all := append(append(top, body[:room]...), m.drawFooter())
	if len(all) > m.height {
		all = all[len(all)-m.height:]
	}

	for i, l := range all {
		fill := Plain
		if len(l) > 0 && l[len(l)-1].Style&Reverse != 0 {
			fill = l[len(l)-1].Style
		}
		all[i] = l.fitColumns(m.width, m.ellipsisText(), fill)
	}

	return all
}

// waitingWords is the text before the first board has arrived.
func (m *Model) waitingWords() string {
	if m.away != nil {
		return ""
	}
	return "asking " + m.server + " …"
}

// drawStacked draws panes below each other.
func (m *Model) drawStacked(wide, room int, which ...int) Picture {
	heights := m.shareLines(room, which)
	var p Picture
	for i, pane := range which {
		p = append(p, m.drawPane(pane, wide, heights[i])...)
	}

	return p
}

// sideBySide draws problems and active runs on the left, and the other panes on the right.
func (m *Model) sideBySide(room int) Picture {
	left := m.width * 3 / 5
	a := m.drawStacked(left, room, paneProblems, running)
	b := m.drawStacked(m.width-left-1, room, coming, nodes)

	p := make(Picture, room)
	for i := range p {
		var l, r Line
		if i < len(a) {
			l = a[i]
		}

		if i < len(b) {
			r = b[i]
		}

		p[i] = append(append(l.fitColumns(left, m.ellipsisText(), Plain), Span{" ", Plain}), r.fitColumns(m.width-left-1, m.ellipsisText(), Plain)...)
	}

	return p
}

// drawFocused draws the focused pane, below the names of all panes.
func (m *Model) drawFocused(room int) Picture {
	tabs := Line{{" ", Plain}}
	for i, name := range paneNames {
		style := Dim
		if i == m.focus {
			style = Bold | Reverse
		}
		tabs = append(tabs, Span{shortName(name), style}, Span{" ", Plain})
	}

	return append(Picture{tabs}, m.drawPane(m.focus, m.width, room-1)...)
}

// shortName returns the beginning of a name.
func shortName(name string) string {
	if len(name) > 4 {
		return name[:4]
	}
	return name
}

// shareLines distributes lines among panes. Each pane gets no more than it needs; the focused pane and the
// problems have priority. A pane has two lines in addition to its rows.
func (m *Model) shareLines(room int, which []int) []int {
	const frame = 2
	heights, wants := make([]int, len(which)), make([]int, len(which))
	for i, p := range which {
		heights[i] = frame + 1
		wants[i] = frame + max(len(m.panes[p].rows), 1)
		room -= heights[i]
	}

	for room > 0 {
		best, need := -1, 0.0
		for i, p := range which {
			if heights[i] >= wants[i] {
				continue
			}

			weight := 1.0
			if p == paneProblems {
				weight = 1.5
			}

			if p == m.focus {
				weight *= 2
			}

			if n := weight / float64(heights[i]-frame); n > need {
				best, need = i, n
			}
		}

		if best < 0 {
			break
		}

		heights[best]++
		room--
	}

	return heights
}

// paneNames are the titles of the panes.
var paneNames = [panes]string{"PROBLEMS", "NEXT", "RUNNING", "NODES"}

// drawPane draws a pane in high lines: its title, its column heads, and its rows.
func (m *Model) drawPane(i, wide, high int) Picture {
	p := &m.panes[i]

	if high < 2 {
		return nil
	}

	focused := i == m.focus
	name, rule := Bold, "─"
	if focused {
		name = Bold | Reverse
	}

	title := Line{{" " + paneNames[i] + " ", name}, {" ", Plain}}
	if p.hidden > 0 {
		title = append(title, Span{fmt.Sprintf("(%d hidden) ", p.hidden), Yellow})
	}
	title = append(title, Span{m.toPrintable(m.paneSummary(i)) + " ", Plain})

	if left := wide - title.displayWidth(); left > 0 {
		title = append(title, Span{strings.Repeat(m.toPrintable(rule), left), Dim})
	}

	out := Picture{title.fitColumns(wide, m.ellipsisText(), Dim)}

	if len(p.rows) == 0 {
		style, text := m.emptyText(i)
		return append(out, Line{{" " + m.toPrintable(text), style}})
	}

	rows := p.visibleRows(high - 2)
	head, lines := m.drawTable(paneLayouts[i], rows, wide)
	out = append(out, head)
	if focused {
		m.markCursor(p, lines, wide)
	}

	return append(out, lines...)
}

// markCursor highlights the row under the cursor. lines are the visible rows.
func (m *Model) markCursor(p *pane, lines []Line, wide int) {
	for at, l := range lines {
		if p.top+at != p.cursor {
			continue
		}

		for j := range l {
			l[j].Style = l[j].Style&^Dim | Reverse
		}
		lines[at] = l.fitColumns(wide, m.ellipsisText(), l[0].Style)
	}
}

// paneSummary returns the text in a pane's title, which covers all of its items and not only the listed ones.
func (m *Model) paneSummary(i int) string {
	b := &m.board
	var words []string
	add := func(n int, what string) {
		if n > 0 {
			words = append(words, formatNumber(n)+" "+what)
		}
	}

	switch i {
	case paneProblems:
		words = overview.Summary(m.problems)
	case coming:
		if n := len(b.Next); n > 0 && m.isTruncated(n) {
			return fmt.Sprintf("the first %d, up to %s", n, m.formatClock(b.Next[n-1].Due().Time))
		}
		return "within " + formatSpan(b.Span.Std())
	case running:
		add(b.ActiveCount, "active")
		for _, reason := range sortedKeys(b.Waiting) {
			add(b.Waiting[reason], "waiting: "+strings.ReplaceAll(reason, "_", " "))
		}
	case nodes:
		words = append(words, fmt.Sprintf("%s, %d of %d shards fire", formatCount(len(b.Nodes), "node"), b.Serving, b.ShardCount))
	}

	return strings.Join(words, " · ")
}

// isTruncated reports whether a list has the maximum length, so that items may be missing.
func (m *Model) isTruncated(n int) bool { return n >= Listed }

// Listed is the number of items of each list that the screen requests.
const Listed = 100

// emptyText returns the text of a pane without rows.
func (m *Model) emptyText(i int) (Style, string) {
	if m.panes[i].hidden > 0 {
		return Dim, "no rows match the filter"
	}

	switch i {
	case paneProblems:
		return Green, "✓ no problems"
	case coming:
		return Dim, "no tick within " + formatSpan(m.board.Span.Std())
	case running:
		return Dim, "nothing"
	}

	return Dim, "none"
}

// drawHeader draws the first lines: the state of the cluster in numbers, and problems with the connection.
func (m *Model) drawHeader() Picture {
	b := &m.board

	if m.got.IsZero() {
		return append(Picture{m.alignRight(Line{{" carillon top", Bold}}, m.now.In(m.cfg.Zone).Format("15:04:05 MST"), Plain)}, m.drawTrouble()...)
	}

	clock, style := m.clusterTime().In(m.cfg.Zone).Format("15:04:05 MST"), Plain
	if m.away != nil || m.now.Sub(m.got) > staleAfter {
		style = Red
	}

	tasks := Line{{formatCount(b.Tasks, "task"), Plain}}
	if b.Paused > 0 {
		tasks = append(tasks, Span{", " + formatNumber(b.Paused) + " paused", Plain})
	}

	name := Line{{" carillon top", Bold}}
	if m.width > 0 && m.width < minBrandWidth {
		name, tasks = nil, append(Line{{" ", Plain}}, tasks...)
	}

	first := m.joinParts(m.width-textWidth(clock)-3, name, tasks, m.drawAlertCount(), Line{m.drawSlots()},
		countOrNothing(b.WaitingCount, "waiting"), Line{{formatCount(len(b.Nodes), "node"), Plain}})
	r := b.Recent
	fires, late, failed := Line{{" fires " + formatRate(r.Fired), Plain}}, Line(nil), Line{{"none failed", Dim}}
	if r.Fired > 0 {
		fires = append(fires, Span{" " + m.toPrintable(drawBars(r.Rate)), Cyan})
		late = Line{{fmt.Sprintf("late p50 %s, p99 %s, max %s", formatMillis(r.P50MS), formatMillis(r.P99MS), formatMillis(r.MaxMS)), Plain}}
	}

	if r.Failed > 0 {
		failed = Line{{formatNumber(r.Failed) + " failed/min", Red}}
	}

	second := m.joinParts(m.width, fires, late, failed, countOrNothing(r.Skipped, "skipped/min"), countOrNothing(r.Succeeded, "succeeded/min"))

	return append(Picture{m.alignRight(first, clock, style), second}, m.drawTrouble()...)
}

// countOrNothing draws a count, or nothing if it is zero.
func countOrNothing[T int | int64](n T, unit string) Line {
	if n == 0 {
		return nil
	}
	return Line{{formatNumber(n) + " " + unit, Plain}}
}

// joinParts joins parts on one line, as many as fit. Without a width, it joins all.
func (m *Model) joinParts(room int, parts ...Line) (l Line) {
	sep := Span{m.toPrintable("  ·  "), Dim}

	for _, p := range parts {
		if len(p) == 0 || len(l) > 0 && m.width > 0 && l.displayWidth()+textWidth(sep.Text)+p.displayWidth() > room {
			continue
		}

		if len(l) > 0 {
			l = append(l, sep)
		}

		l = append(l, p...)
	}

	return l
}

// drawSlots draws the number of active attempts, highlighted if all slots are in use.
func (m *Model) drawSlots() Span {
	used, all := 0, 0
	for _, n := range m.board.Nodes {
		if slices.Contains(n.Roles, task.RoleExecutor) {
			used, all = used+n.Running, all+n.Slots
		}
	}

	words := formatNumber(m.board.ActiveCount) + " active"

	if all > 0 && used >= all {
		return Span{words + ", slots full", Yellow}
	}

	return Span{words, Plain}
}

// drawTrouble draws a line if the server does not answer, with the age of the board.
func (m *Model) drawTrouble() Picture {
	if m.away == nil {
		return nil
	}

	words := " no response for " + formatSpan(m.now.Sub(m.gone)) + ": " + stripControls(m.away.Error())
	if !m.got.IsZero() {
		words += " · data from " + formatSpan(m.now.Sub(m.got)) + " ago"
	}

	return Picture{{{m.toPrintable(words), Red | Reverse}}}
}

// alignRight adds a text at the right end of a line.
func (m *Model) alignRight(l Line, text string, style Style) Line {
	if m.width == 0 {
		return append(l, Span{m.toPrintable("  ·  "), Dim}, Span{text, style})
	}

	room := m.width - textWidth(text) - 1
	if room < 12 {
		return l
	}

	return append(l.fitColumns(room-1, m.ellipsisText(), Plain), Span{" " + text + " ", style})
}

// drawFooter draws the last line: a question, the result of a change, or the keys.
func (m *Model) drawFooter() Line {
	switch {
	case m.ask != nil:
		return Line{{" " + m.ask.words + " ", Bold | Yellow}, {m.toPrintable(" y yes · any other key no "), Plain}}
	case m.typing:
		return Line{{" /" + m.filter, Bold}, {m.toPrintable("▏"), Plain}, {"  enter keeps it, esc clears it", Dim}}
	case m.notice != "":
		style := Green
		if m.bad {
			style = Red
		}
		return Line{{" " + m.toPrintable(stripControls(m.notice)), style}}
	case m.help:
		return Line{{" any key goes back", Dim}}
	}

	keys := panesKeys
	if m.view != nil {
		keys = m.view.keyHelp()
	}

	l := Line{{" ", Plain}}
	if m.filter != "" && m.view == nil {
		l = append(l, Span{"/" + m.filter, Bold | Yellow}, Span{" esc clears  ", Dim})
	}

	for _, k := range keys {
		l = append(l, Span{k[0], Bold}, Span{" " + k[1] + "  ", Dim})
	}

	return l
}

// panesKeys are the keys in the footer.
var panesKeys = [][2]string{{"tab", "pane"}, {"/", "filter"}, {"enter", "details"}, {"l", "logs"}, {"w", "why"}, {"t", "trigger"}, {"p", "pause"}, {"?", "help"}, {"q", "quit"}, {"A", "alerts"}}

// helpText draws the description of the keys.
func (m *Model) helpText() Picture {
	p := Picture{{}, {{" Keys", Bold}}}
	for _, k := range [][2]string{
		{"tab, shift-tab, 1…4", "the next pane, the previous pane, this pane"},
		{"↑ ↓ j k", "up and down; pgup, pgdn, g, G further"},
		{"/", "show only rows with this text; esc shows all again"},
		{"enter", "details of the task or the node; esc goes back"},
		{"l", "output of the run, or of the task's latest run"},
		{"w", "why the task ran, did not, or will"},
		{"t", "run the task now"},
		{"p", "pause it; in its details, resume it"},
		{"a", "acknowledge its open alerts"},
		{"A", "open alerts of all namespaces"},
		{"r", "refresh now"},
		{"q", "quit"},
	} {
		p = append(p, Line{{"   " + setInColumns(m.toPrintable(k[0]), 22, false, m.ellipsisText()), Cyan}, {m.toPrintable(k[1]), Plain}})
	}

	return append(p, Line{}, Line{{" Words", Bold}},
		Line{{"   failing  ", Cyan}, {"a run failed, and no later one has succeeded", Plain}},
		Line{{"   alerting ", Cyan}, {"not failing, but an expectation is not met", Plain}},
		Line{{"   overdue  ", Cyan}, {"a tick was due more than 2 s ago and is not decided", Plain}},
		Line{{"   stuck    ", Cyan}, {"a shard that decides nothing, or is being loaded", Plain}},
		Line{{"   late     ", Cyan}, {"from a tick's time to the commit that decided it", Plain}})
}
