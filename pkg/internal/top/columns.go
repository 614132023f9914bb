package top

import "strings"

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
