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
