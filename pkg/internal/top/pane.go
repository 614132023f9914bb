package top

import "strings"

// row is one line of a pane.
type row struct {
	key    string // identifies the row across boards
	style  Style
	cells  []string
	target Target
	hint   string // what to do about it
}

// pane is a list with a cursor. The cursor stays on its row when other rows appear or disappear.
type pane struct {
	rows   []row
	key    string // the key of the row under the cursor
	cursor int
	top    int // the index of the first visible row
	lines  int // the number of visible rows
	hidden int // the number of rows that the filter hides
}

// setRows replaces the rows.
func (p *pane) setRows(rows []row, filter string) {
	p.hidden = len(rows)
	p.rows = p.rows[:0]
	for _, r := range rows {
		if filter == "" || strings.Contains(strings.ToLower(strings.Join(r.cells, " ")+" "+r.target.Namespace+"/"+r.target.Task), strings.ToLower(filter)) {
			p.rows = append(p.rows, r)
		}
	}

	p.hidden -= len(p.rows)
	if p.cursor > 0 { // at the top it stays at the top, because the first row is the most important one
		for i, r := range p.rows {
			if r.key == p.key {
				p.cursor = i
				break
			}
		}
	}

	p.selectRow(p.cursor)
}

// selectRow moves the cursor to a row.
func (p *pane) selectRow(i int) {
	p.cursor = max(0, min(i, len(p.rows)-1))
	if r := p.selectedRow(); r != nil {
		p.key = r.key
	}
}

// selectedRow returns the row under the cursor, or nil.
func (p *pane) selectedRow() *row {
	if p.cursor < len(p.rows) {
		return &p.rows[p.cursor]
	}
	return nil
}

// moveCursor moves the cursor. It returns false if the key does not move it.
func (p *pane) moveCursor(k string, page int) bool {
	switch k {
	case "down", "j":
		p.selectRow(p.cursor + 1)
	case "up", "k":
		p.selectRow(p.cursor - 1)
	case "pgdn", "space", "ctrl-f":
		p.selectRow(p.cursor + page)
	case "pgup", "b", "ctrl-b":
		p.selectRow(p.cursor - page)
	case "home", "g":
		p.selectRow(0)
	case "end", "G":
		p.selectRow(len(p.rows) - 1)
	default:
		return false
	}

	return true
}

// visibleRows returns the rows that fit into this many lines, including the one under the cursor.
func (p *pane) visibleRows(lines int) []row {
	p.lines = lines
	if p.cursor < p.top {
		p.top = p.cursor
	}

	if p.cursor >= p.top+lines {
		p.top = p.cursor - lines + 1
	}

	p.top = max(0, min(p.top, len(p.rows)-lines))

	return p.rows[p.top:min(len(p.rows), p.top+lines)]
}

// column is the layout of one column.
type column struct {
	head  string
	right bool // align to the right: for numbers and durations
	grow  bool // may be narrower than its contents; of several such columns, the widest shrinks first
	least int  // the minimum width of a column that may shrink
	from  int  // hide the column on terminals that are narrower
	style Style
}

// paneLayouts are the columns of each pane.
var paneLayouts = [panes][]column{
	paneProblems: {
		{head: ""}, {head: "PROBLEM"}, {head: "OBJECT", grow: true, least: 12}, {head: "FOR", right: true}, {head: "DETAILS", grow: true, least: 10, from: 50, style: Plain},
	},
	coming:  {{head: "DUE"}, {head: "LEFT", right: true}, {head: "TASK", grow: true, least: 10}},
	running: {{head: "", style: Cyan}, {head: "FOR", right: true}, {head: "TASK", grow: true, least: 10}, {head: "NODE"}, {head: "", grow: true, least: 15}, {head: "RUN", from: 100, style: Dim}},
	nodes: {{head: "NODE", grow: true, least: 6}, {head: "STATE"}, {head: "RUNS", right: true}, {head: "SHARDS", right: true}, {head: "FIRES", right: true},
		{head: "P99 LATE", right: true, from: 60}, {head: "JOINED", right: true, from: 70}, {head: "ADDRESS", from: 100, style: Dim}, {head: "VERSION", from: 120, style: Dim}},
}

// drawTable draws rows in columns. Each column is as wide as its contents, with two spaces between columns.
// Columns with grow shrink if the space does not suffice. With wide 0, nothing is cut.
func (m *Model) drawTable(cols []column, rows []row, wide int) (head Line, lines []Line) {
	room := wide
	if wide == 0 {
		room = 1 << 20
	}

	widths := make([]int, len(cols))
	shown := func(i int) bool { return cols[i].from <= room }

	for i, c := range cols {
		if shown(i) {
			widths[i] = textWidth(c.head)
			for _, r := range rows {
				widths[i] = max(widths[i], textWidth(r.cells[i]))
			}
		}
	}

	shrinkColumns(cols, widths, room)
	head = Line{{" ", Dim}}
	for i, c := range cols {
		if widths[i] > 0 {
			head = append(head, Span{setInColumns(c.head, widths[i], c.right, m.ellipsisText()) + "  ", Dim})
		}
	}

	for _, r := range rows {
		l := Line{{" ", r.style}}
		for i, c := range cols {
			if widths[i] == 0 {
				continue
			}

			style := r.style
			if c.style != Plain && r.style == Plain {
				style = c.style
			}

			if c.head == "DETAILS" && r.style != Dim {
				style = Plain
			}

			l = append(l, Span{setInColumns(r.cells[i], widths[i], c.right, m.ellipsisText()) + "  ", style})
		}

		lines = append(lines, l)
	}

	return head, lines
}

// shrinkColumns makes columns narrower, always the widest that may shrink, until all fit.
func shrinkColumns(cols []column, widths []int, room int) {
	for {
		sum, widest := 1, -1
		for i, w := range widths {
			if w == 0 {
				continue
			}

			sum += w + 2

			if c := cols[i]; c.grow && w > c.least && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}

		if over := sum - 2 - room; over <= 0 || widest < 0 {
			return
		}

		widths[widest]--
	}
}

// setInColumns returns a text in exactly this many terminal columns. more marks text that was cut.
func setInColumns(s string, columns int, right bool, more string) string {
	s = cutText(s, columns, more)
	fill := strings.Repeat(" ", max(0, columns-textWidth(s)))

	if right {
		return fill + s
	}

	return s + fill
}

// Once draws a board as a report for output without a screen: everything that it lists, one pane after another.
// wide is the width in columns; 0 means that nothing is cut.
func (m *Model) Once(b BoardUpdate, wide int) Picture {
	m.now, m.width = b.Board.At.Time, wide
	m.applyBoard(b)

	p := m.drawHeader()
	for i := range m.panes {
		list := &m.panes[i]
		p = append(p, Line{}, Line{{paneNames[i], Bold}, {"  " + m.toPrintable(m.paneSummary(i)), Plain}})
		if len(list.rows) == 0 {
			style, text := m.emptyText(i)
			p = append(p, Line{{" " + m.toPrintable(text), style}})
			continue
		}

		head, lines := m.drawTable(paneLayouts[i], list.rows, wide)
		p = append(append(p, head), lines...)
	}

	for i, l := range p {
		if wide > 0 {
			p[i] = l.fitColumns(wide, m.ellipsisText(), Plain)
		}
	}

	return p
}
