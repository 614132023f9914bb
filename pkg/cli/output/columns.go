package output

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
)

// column describes how the columns with one heading give way on a terminal that is too narrow, in whichever table they are.
// The zero column is that of a usual column, whose cells can be cut.
type column struct {
	rank  rank
	least int      // its cells are not cut down below this width; 0: leastUsual
	short []form   // how its cells are shortened before they are cut, one after the other
	heads []string // its heading after each of these
}

// rank is the importance of a column. Of two columns of the same rank, the left one is the more important one.
type rank int

// The ranks of columns.
const (
	rankKey    rank = iota - 1 // what the row is about, when, and how it ended
	rankUsual                  // all columns that are not in the table below
	rankDetail                 // what is rarely needed
	rankRepeat                 // what another column says in other words
)

const (
	leastUsual = 12
	leastWhole = 48 // of columns whose cells users type again or compare: names and times. Longer ones may be cut, as carillon help output says
)

// form is a shorter form of a cell. It gets and returns a text without colors.
type form func(p *Printer, cell string) string

// columns are the columns that differ from usual ones.
var columns = map[string]column{
	"NAMESPACE": {rank: rankKey, least: leastWhole},
	"NAME":      {rank: rankKey, least: leastWhole},
	"TASK":      {rank: rankKey, least: leastWhole},
	"ALERT":     {rank: rankKey, least: leastWhole},
	"SILENCE":   {rank: rankKey, least: leastWhole},
	"ID":        {rank: rankKey, least: leastWhole},
	"RULE":      {rank: rankKey, least: leastWhole},

	// A prefix of an ID may also be that of another run, and all runs of a task share the letters at its end. So an ID is
	// shown whole or not at all.
	"RUN":  {rank: rankUsual, least: leastWhole},
	"NODE": {rank: rankDetail, least: leastWhole},

	"NEXT":       {rank: rankKey, least: leastWhole, short: []form{dropWeekday, dropParentheses, dropClock, dropUntil}},
	"LAST":       {rank: rankKey, least: leastWhole, short: []form{firstPart, largestUnit}},
	"TIME":       {least: leastWhole, short: []form{dropWeekday, shortenDate}},
	"TICK":       {rank: rankUsual, least: leastWhole, short: []form{dropWeekday, dropParentheses, shortenDate, beginOfRange}},
	"UNTIL":      {least: leastWhole, short: []form{dropWeekday, dropClock}},
	"EXPIRES":    {least: leastWhole, short: []form{dropWeekday, dropClock}},
	"ENDS":       {least: leastWhole, short: []form{dropWeekday, dropClock}},
	"MINUTE":     {rank: rankKey, least: leastWhole, short: []form{dropWeekday}},
	"STARTED":    {least: leastWhole, short: []form{dropParentheses, shortenDate}},
	"DUE":        {rank: rankDetail, least: leastWhole},
	"DUE BEFORE": {least: leastWhole, short: []form{shortenDate}},
	"UTC":        {rank: rankRepeat, least: leastWhole},
	"LEFT":       {rank: rankDetail, least: leastWhole, short: []form{largestUnit}},
	"KIND":       {rank: rankDetail, least: leastWhole},
	"LATE":       {rank: rankDetail, least: leastWhole},
	"TOOK":       {least: leastWhole, short: []form{firstPart}},
	"ADDRESS":    {rank: rankDetail, least: leastWhole},
	"VERSION":    {rank: rankDetail, least: leastWhole},

	"RESULT":       {rank: rankKey, short: []form{firstPart, dropParentheses}},
	"LAST 10":      {least: leastWhole, short: []form{lastFive}, heads: []string{"LAST 5"}},
	"SCHEDULE":     {rank: rankDetail, least: 15},
	"ACKNOWLEDGED": {short: []form{firstPart}},
	"OPERATION":    {least: leastWhole},
	"OBJECTS":      {least: 20},
	"NOTE":         {least: 20},
	"EVENT":        {rank: rankKey, least: 20, short: []form{dropRunID}},
}

// fittedColumn is a column of a table as it is shown on a narrow terminal.
type fittedColumn struct {
	column
	at     int        // its index in the table
	cells  [][]string // by how many forms are used: the cells, and the heading above them
	widths []int      // the widest of these cells
	used   int        // how many forms are used
	width  int        // wider cells are cut
}

// fitColumns returns those columns of a table that a terminal has room for, in their order.
//
// It takes the columns in the order of their importance, and leaves out those that do not fit even with their shortest
// cells. Rank by rank, the columns then get the rest of the width: first those whose cells would be cut, then those whose
// cells have longer forms.
func (ta *Table) fitColumns(p *Printer, width int, more string) []fittedColumn {
	all := make([]fittedColumn, len(ta.Headers))
	need := -columnGap

	for i := range ta.Headers {
		all[i] = ta.measureColumn(p, i)
		need += columnGap + all[i].width
	}

	left := width + columnGap // the first column has no gap
	if need > width {
		left -= columnGap + text.StringWidthWithoutEscSequences(more) // the heading ends with the sign that there are more columns
	}

	byRank := make([]*fittedColumn, len(all))
	for i := range all {
		byRank[i] = &all[i]
	}
	slices.SortStableFunc(byRank, func(a, b *fittedColumn) int { return int(a.rank - b.rank) })

	var shown []*fittedColumn
	for _, c := range byRank {
		if c.width+columnGap > left && len(shown) > 0 {
			continue
		}

		// The most important column is there in any case, if need be cut further.
		c.width = max(min(c.width, left-columnGap), 1)
		left -= c.width + columnGap
		shown = append(shown, c)
	}

	for from := 0; from < len(shown); {
		to := from
		for to < len(shown) && shown[to].rank == shown[from].rank {
			to++
		}
		left = widenCut(shown[from:to], left)
		left = useLongerForms(shown[from:to], left)
		from = to
	}

	slices.SortFunc(shown, func(a, b *fittedColumn) int { return a.at - b.at })

	list := make([]fittedColumn, len(shown))
	for i, c := range shown {
		list[i] = *c
	}

	return list
}

// widenCut widens the columns whose cells are cut, the narrowest first. It returns what is left of the width.
func widenCut(shown []*fittedColumn, left int) int {
	for ; left > 0; left-- {
		var narrowest *fittedColumn
		for _, c := range shown {
			if c.width < c.widths[c.used] && (narrowest == nil || c.width < narrowest.width) {
				narrowest = c
			}
		}

		if narrowest == nil {
			break
		}

		narrowest.width++
	}

	return left
}

// useLongerForms replaces the cells of columns by longer forms that fit. It returns what is left of the width.
func useLongerForms(shown []*fittedColumn, left int) int {
	for _, c := range shown {
		for c.used > 0 && c.widths[c.used-1] <= c.width+left {
			c.used--
			wider := max(c.widths[c.used]-c.width, 0)
			c.width, left = c.width+wider, left-wider
		}
	}

	return left
}

// measureColumn returns a column with its shortest cells.
func (ta *Table) measureColumn(p *Printer, at int) fittedColumn {
	c := fittedColumn{column: columns[ta.Headers[at]], at: at}
	if ta.Key != "" && ta.Headers[at] == ta.Key {
		c.rank, c.least = rankKey, leastWhole
	}

	cells := []string{ta.Headers[at]}
	for _, row := range ta.Rows {
		cell := ""
		if at < len(row) {
			cell = row[at]
		}
		cells = append(cells, cell)
	}

	for i := range len(c.short) + 1 {
		if i > 0 {
			cells = slices.Clone(cells)
			if i <= len(c.heads) {
				cells[0] = c.heads[i-1]
			}
			for j := range cells[1:] {
				cells[j+1] = shorten(p, cells[j+1], c.short[i-1])
			}
		}

		widest := 0
		for j, cell := range cells {
			if j > 0 || !p.NoHeaders {
				widest = max(widest, text.StringWidthWithoutEscSequences(cell))
			}
		}

		c.cells, c.widths = append(c.cells, cells), append(c.widths, widest)
	}

	least := c.least
	if least == 0 {
		least = leastUsual
	}
	if !p.NoHeaders {
		least = max(least, text.StringWidthWithoutEscSequences(cells[0]))
	}

	c.used = len(c.short)
	c.width = min(c.widths[c.used], least)

	return c
}

// painted matches a text and the color that all of it has.
var painted = regexp.MustCompile("^(\x1b\\[[0-9;]*m)([^\x1b]*)(\x1b\\[0m)$")

// shorten returns a shorter form of a cell, in the same color.
func shorten(p *Printer, cell string, to form) string {
	if part := painted.FindStringSubmatch(cell); part != nil {
		return part[1] + to(p, part[2]) + part[3]
	}
	return to(p, cell)
}

// weekdays matches a weekday before a time of day or a date.
var weekdays = regexp.MustCompile(`\b((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )(\d\d:\d\d|\d{1,2} [A-Z][a-z]{2} |\d{4}-)`)

// dropWeekday drops weekdays before dates, and before times of today: "Sat 02:30 CET" becomes "02:30 CET".
func dropWeekday(p *Printer, cell string) string {
	today, known := p.today()
	return weekdays.ReplaceAllStringFunc(cell, func(s string) string {
		if day, rest := s[:len("Mon ")], s[len("Mon "):]; !strings.Contains(rest, ":") || known && day == today.Format("Mon ") {
			return rest
		}
		return s
	})
}

// today returns the current time in the zone of the output, unless each task has its own zone.
func (p *Printer) today() (time.Time, bool) {
	return p.Now().In(p.Zone(ReaderZone)), p.TimeMode != TimeTask
}

// exactTimes matches a time as ExactTime formats it.
var exactTimes = regexp.MustCompile(`(\d{4}-\d\d-\d\d) (\d\d:\d\d)(:\d\d)?(?:\.\d+)?( [A-Z+-][A-Z0-9+-]+)`)

// shortenDate shortens exact times: those of today to the time of day, others to the date and the time of day. Only zeros are
// dropped from the seconds, as ClockTime does, so that the time can be typed again.
func shortenDate(p *Printer, cell string) string {
	today, known := p.today()
	return exactTimes.ReplaceAllStringFunc(cell, func(s string) string {
		part := exactTimes.FindStringSubmatch(s)
		day, err := time.Parse(time.DateOnly, part[1])
		seconds := part[3]
		if seconds == ":00" && !strings.Contains(s, ".") {
			seconds = ""
		}
		clock := part[2] + seconds + part[4]

		switch {
		case err != nil:
			return s
		case known && part[1] == today.Format(time.DateOnly):
			return part[2] + part[3] + part[4]
		case day.Year() != today.Year():
			return day.Format("2 Jan 2006 ") + clock
		}

		return day.Format("2 Jan ") + clock
	})
}

// datedTimes matches a date with the time of day behind it.
var datedTimes = regexp.MustCompile(`(\d{1,2} [A-Z][a-z]{2}(?: \d{4})?|\d{4}-\d\d-\d\d) \d\d:\d\d(?::\d\d)?(?:\.\d+)? [A-Z+-][A-Z0-9+-]+`)

// dropClock drops the time of day behind a date: "24 Dec 18:00 CET" becomes "24 Dec".
func dropClock(p *Printer, cell string) string {
	today, _ := p.today()
	return datedTimes.ReplaceAllStringFunc(cell, func(s string) string {
		if date := datedTimes.FindStringSubmatch(s)[1]; date != today.Format(time.DateOnly) {
			return date
		}
		return s
	})
}

// parentheses match a remark in parentheses.
var parentheses = regexp.MustCompile(` \([^()]*\)`)

// dropParentheses drops remarks in parentheses.
func dropParentheses(_ *Printer, cell string) string { return parentheses.ReplaceAllString(cell, "") }

// twoUnits matches a duration of two units.
var twoUnits = regexp.MustCompile(`\b(\d+[a-z]+) \d+[a-z]+\b`)

// largestUnit rounds durations down to their largest unit: "15h 11m ago" becomes "15h ago".
func largestUnit(_ *Printer, cell string) string { return twoUnits.ReplaceAllString(cell, "$1") }

// dropUntil drops when a pause ends.
func dropUntil(p *Printer, cell string) string {
	if words, _, found := strings.Cut(cell, " until "); found {
		return words + " until " + p.moreSign()
	}
	return cell
}

// firstPart drops everything behind the first comma or colon: "21h ago, 41s" becomes "21h ago".
func firstPart(_ *Printer, cell string) string {
	if i := strings.Index(cell, ", "); i > 0 {
		cell = cell[:i]
	}
	if i := strings.Index(cell, ": "); i > 0 {
		cell = cell[:i]
	}

	return cell
}

// beginOfRange keeps only the first tick of several.
func beginOfRange(p *Printer, cell string) string {
	mark := p.Plain(" … ")
	if first, _, found := strings.Cut(cell, mark); found {
		return first + strings.TrimRight(mark, " ")
	}
	return cell
}

// leadingRunID matches the ID of a run with which the text of an event begins.
var leadingRunID = regexp.MustCompile(`^\d{8}T\d{6}\.\d{3}Z-[a-z0-9.-]+ `)

// dropRunID drops the ID of the run from the text of an event.
func dropRunID(_ *Printer, cell string) string { return leadingRunID.ReplaceAllString(cell, "") }

// paintedSign matches a character with its color.
var paintedSign = regexp.MustCompile("(?:\x1b\\[[0-9;]*m)?[^\x1b](?:\x1b\\[0m)?")

// lastFive keeps the last five symbols.
func lastFive(_ *Printer, cell string) string {
	signs := paintedSign.FindAllString(cell, -1)
	return strings.Join(signs[max(len(signs)-5, 0):], "")
}

// Lines prints the rows of a table one by one, as they become known. Its columns have fixed widths.
type Lines struct {
	Headers []string
	Usual   []string // a row with cells of the usual widths; the last column may be wider
}

// Format returns rows as lines. On a terminal, they are not wider than it.
func (l *Lines) Format(p *Printer, rows ...[]string) string {
	usual := &Table{Headers: l.Headers, Rows: [][]string{l.Usual}}
	width, tty := p.Terminal(p.Out)
	narrow := tty && width > 0

	var shown []fittedColumn
	if narrow {
		if shown = usual.fitColumns(p, width, ""); len(shown) < len(l.Headers) {
			shown = usual.fitColumns(p, width, p.moreSign()) // with space for the sign in the heading
		}
	}

	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder

		if narrow {
			for _, c := range shown {
				cell := row[c.at]
				for _, to := range c.short[:c.used] {
					cell = shorten(p, cell, to)
				}
				fmt.Fprint(&line, text.Pad(cell, c.width, ' '), "  ")
			}
			if len(shown) < len(l.Headers) && slices.Equal(row, l.Headers) {
				line.WriteString(p.moreSign())
			}
		} else {
			for i, cell := range row {
				fmt.Fprint(&line, text.Pad(cell, text.StringWidthWithoutEscSequences(l.Usual[i]), ' '), "  ")
			}
		}

		words := strings.TrimRight(line.String(), " ")
		if narrow {
			words = text.Snip(words, width, p.moreSign())
		}
		b.WriteString(words + "\n")
	}

	return b.String()
}
