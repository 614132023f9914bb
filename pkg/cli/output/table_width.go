package output

import (
	"slices"

	"github.com/jedib0t/go-pretty/v6/text"
)

// columnGap is the number of spaces between two columns.
const columnGap = 2

// minWidth returns the minimum width of a column on a narrow terminal. It is larger for columns whose contents
// users type again.
func minWidth(head string) int {
	switch head {
	case "NAME", "TASK":
		return 20
	case "RUN":
		return 32 // a truncated id may also be the prefix of other ids
	}

	return 10
}

// fitToWidth makes a table as narrow as a terminal. The widest columns are shortened first, each down to its
// minimum width. Only if that is not enough, the last columns are removed. Cutting rows at the edge instead
// would hide the state of a task because of a long schedule.
func (g *Table) fitToWidth(width int, more string) *Table {
	widths := make([]int, len(g.Headers))
	for _, row := range append([][]string{g.Headers}, g.Rows...) {
		for i, cell := range row[:min(len(row), len(widths))] {
			widths[i] = max(widths[i], text.StringWidthWithoutEscSequences(cell))
		}
	}

	least := make([]int, len(widths))
	for i, head := range g.Headers {
		least[i] = min(widths[i], max(minWidth(head), text.StringWidthWithoutEscSequences(head)))
	}

	kept, left := len(widths), width
	for ; kept > 1 && tableWidth(least[:kept]) > left; kept-- {
		left = width - columnGap - text.StringWidthWithoutEscSequences(more)
	}

	widths = widths[:kept]
	for tableWidth(widths) > left {
		widest := -1
		for i, w := range widths {
			if w > least[i] && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}

		if widest < 0 {
			break // even a single column is too wide
		}

		widths[widest]--
	}

	out := &Table{Empty: g.Empty}
	short := func(row []string) []string {
		row = slices.Clone(row[:min(len(row), kept)])
		for i := range row {
			row[i] = text.Snip(row[i], widths[i], more)
		}
		return row
	}

	out.Headers = short(g.Headers)
	if kept < len(g.Headers) {
		out.Headers = append(out.Headers, more)
	}

	for _, row := range g.Rows {
		out.AddRow(short(row)...)
	}

	return out
}

// tableWidth returns the width of a table with columns of these widths.
func tableWidth(widths []int) int {
	n := columnGap * (len(widths) - 1)
	for _, w := range widths {
		n += w
	}
	return n
}
