package top

import "strings"

// row is a line of a pane.
type row struct {
	key    string // who it is, from board to board
	style  Style
	cells  []string
	target Target
}

// pane is a list with a cursor, which stays on its row when others come and go.
type pane struct {
	rows   []row
	key    string // of the row under the cursor
	cursor int
	top    int // the first row that is shown
	lines  int // how many are
	hidden int // rows that the filter leaves out
}

// setRows takes new rows.
func (p *pane) setRows(rows []row, filter string) {
	p.hidden = len(rows)
	p.rows = p.rows[:0]
	for _, r := range rows {
		if filter == "" || strings.Contains(strings.ToLower(strings.Join(r.cells, " ")+" "+r.target.Namespace+"/"+r.target.Task), strings.ToLower(filter)) {
			p.rows = append(p.rows, r)
		}
	}

	p.hidden -= len(p.rows)
	if p.cursor > 0 { // at the top it stays there: what is first is worth most
		for i, r := range p.rows {
			if r.key == p.key {
				p.cursor = i
				break
			}
		}
	}

	p.selectRow(p.cursor)
}

// selectRow puts the cursor on a row.
func (p *pane) selectRow(i int) {
	p.cursor = max(0, min(i, len(p.rows)-1))
	if r := p.selectedRow(); r != nil {
		p.key = r.key
	}
}

// selectedRow is that under the cursor; nil: there is none.
func (p *pane) selectedRow() *row {
	if p.cursor < len(p.rows) {
		return &p.rows[p.cursor]
	}
	return nil
}

// moveCursor moves the cursor; false if the key is none that does.
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

// visibleRows are the rows that fit into so many lines, the cursor among them.
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
