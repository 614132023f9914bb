package top

import "strings"

// column is how a cell of a pane's rows is set.
type column struct {
	head  string
	right bool // numbers and durations
	grow  bool // takes what room is left; of several the first most
	least int  // of one that grows: how narrow it may be
	from  int  // it is left out of terminals that are narrower
	style Style
}

var paneLayouts = [panes][]column{
	paneProblems: {
		{head: ""}, {head: "WHAT"}, {head: "WHO", grow: true, least: 12}, {head: "FOR", right: true}, {head: "HOW", grow: true, least: 10, from: 50, style: Plain},
	},
	coming:  {{head: "DUE"}, {head: "LEFT", right: true}, {head: "TASK", grow: true, least: 10}},
	running: {{head: "", style: Cyan}, {head: "FOR", right: true}, {head: "TASK", grow: true, least: 10}, {head: "NODE"}, {head: "", grow: true, least: 15}, {head: "RUN", from: 100, style: Dim}},
	nodes: {{head: "NODE", grow: true, least: 6}, {head: "STATE"}, {head: "RUNS", right: true}, {head: "SHARDS", right: true}, {head: "FIRES", right: true},
		{head: "P99 LATE", right: true, from: 60}, {head: "JOINED", right: true, from: 70}, {head: "ADDRESS", from: 100, style: Dim}, {head: "VERSION", from: 120, style: Dim}},
}

// drawTable sets rows in columns: each as wide as it must be, two blanks between them,
// and what grows as the room allows. wide 0: nothing is cut.
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

			if c.head == "HOW" && r.style != Dim {
				style = Plain
			}

			l = append(l, Span{setInColumns(r.cells[i], widths[i], c.right, m.ellipsisText()) + "  ", style})
		}

		lines = append(lines, l)
	}

	return head, lines
}

// shrinkColumns makes columns that grow narrower, the widest first, until all fit.
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

// setInColumns is a text in exactly so many columns.
func setInColumns(s string, columns int, right bool, more string) string {
	s = cutText(s, columns, more)
	fill := strings.Repeat(" ", max(0, columns-textWidth(s)))

	if right {
		return fill + s
	}

	return s + fill
}
