package cli

import (
	"slices"

	"github.com/jedib0t/go-pretty/v6/text"
)

// between is what stands between two columns.
const between = 2

// leastWidth is how many characters a column keeps on a narrow terminal: more, if
// what it has is typed again.
func leastWidth(head string) int {
	switch head {
	case "NAME", "TASK":
		return 20
	case "RUN":
		return 32 // a part of an id is that of other runs, too
	}
	return 10
}

// fit makes a table as narrow as a terminal: the widest columns give first, each down
// to what it needs to be read. Only if that is not enough, the last columns go. To cut
// rows at the edge would take away how a task fares, for the sake of a long schedule.
func (g *grid) fit(width int, more string) *grid {
	widths := make([]int, len(g.heads))
	for _, row := range append([][]string{g.heads}, g.rows...) {
		for i, cell := range row[:min(len(row), len(widths))] {
			widths[i] = max(widths[i], text.StringWidthWithoutEscSequences(cell))
		}
	}
	least := make([]int, len(widths))
	for i, head := range g.heads {
		least[i] = min(widths[i], max(leastWidth(head), text.StringWidthWithoutEscSequences(head)))
	}
	kept, left := len(widths), width
	for ; kept > 1 && total(least[:kept]) > left; kept-- {
		left = width - between - text.StringWidthWithoutEscSequences(more)
	}
	widths = widths[:kept]
	for total(widths) > left {
		widest := -1
		for i, w := range widths {
			if w > least[i] && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break // one column alone is too wide
		}
		widths[widest]--
	}
	out := &grid{empty: g.empty}
	short := func(row []string) []string {
		row = slices.Clone(row[:min(len(row), kept)])
		for i := range row {
			row[i] = text.Snip(row[i], widths[i], more)
		}
		return row
	}
	out.heads = short(g.heads)
	if kept < len(g.heads) {
		out.heads = append(out.heads, more)
	}
	for _, row := range g.rows {
		out.add(short(row)...)
	}
	return out
}

// total is how wide a table with columns of these widths is.
func total(widths []int) int {
	n := between * (len(widths) - 1)
	for _, w := range widths {
		n += w
	}
	return n
}
