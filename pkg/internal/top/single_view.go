package top

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
