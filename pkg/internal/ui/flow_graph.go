package ui

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// Sizes of the graph of steps, in rem. They are also in the style sheet, because lines end at cards.
const (
	cardWidth  = 13.0
	cardHeight = 5.2
	laneHeight = 1.2
	slotGap    = 0.8 // between the slots of a column
	columnGap  = 3.0
)

// stepParam is the parameter with the step that a page shows in detail.
const stepParam = "step"

// flowGraph is the graph of the steps of a workflow: cards in columns, in the order in which steps run, and lines between them.
type flowGraph struct {
	Columns [][]flowSlot
	lines   []flowLine
	height  float64
}

// flowSlot is a place in a column: a card, or a lane through which the lines from a step of an earlier column pass.
type flowSlot struct {
	Card *flowCard // nil: a lane

	step int     // of the card, or where the lines begin
	y    float64 // of its middle
}

// flowCard is a step in the graph.
type flowCard struct {
	Name     string
	Short    string // a name that is too long for its line, without its middle; "" for others
	Look     badge
	Words    string // its state; "" in the graph of a task
	Progress string // of its items
	Note     string // when it begins
	Kind     string // "cleanup", "on failure", or the kind of its action
	Part     int    // of Whole have ended: the meter of a map
	Whole    int
	Chosen   bool
}

// maxCardName is how many characters of a name the line of a card has space for.
const maxCardName = 18

// newFlowCard returns the card of a step. Long names often differ only at their end.
func newFlowCard(name string) flowCard {
	c := flowCard{Name: name}
	if len(name) > maxCardName { // the names of steps are ASCII
		c.Short = name[:maxCardName/2-1] + "…" + name[len(name)-maxCardName/2:]
	}

	return c
}

// afterText says when a step begins.
func afterText(needs []string, when task.When) string {
	if len(needs) == 0 {
		return "begins with the run"
	}

	names := strings.Join(needs, ", ")
	switch when {
	case task.WhenFailed:
		if len(needs) > 1 {
			return "if one of these fails: " + names
		}
		return "if " + names + " fails"
	case task.WhenAlways:
		return "cleans up after " + names
	}

	return "after " + names
}

// kindText says what is special about when a step begins, in a word for its card.
func kindText(kind string, when task.When) string {
	switch when {
	case task.WhenFailed:
		return "on failure"
	case task.WhenAlways:
		return "cleanup"
	}

	return kind
}

// flowLine leads from a slot to one of the next column.
type flowLine struct {
	column   int // of its end
	from, to float64
	toCard   bool
	class    string
}

// newFlowGraph arranges cards. needs contains the numbers of the steps that each one needs, all of which are smaller than its own.
// lineClass returns the class of the lines that lead from a step to another one.
func newFlowGraph(cards []flowCard, needs [][]int, lineClass func(from, to int) string) *flowGraph {
	g := &flowGraph{}
	level := levelsOf(needs)
	g.addSlots(cards, needs, level)
	order := newSlotOrder(g.Columns, needs, level)
	order.arrange()
	g.place()

	for column := 1; column < len(g.Columns); column++ {
		for _, end := range g.Columns[column] {
			for _, place := range order.before(column, end) {
				begin := g.Columns[column-1][place]
				l := flowLine{column: column, from: begin.y, to: end.y, toCard: end.Card != nil}
				if l.toCard {
					l.class = lineClass(begin.step, end.step)
				} else {
					l.class = order.laneClass(column, end.step, lineClass)
				}
				g.lines = append(g.lines, l)
			}
		}
	}

	return g
}

// levelsOf returns the column of each step: the first one behind all that it needs.
func levelsOf(needs [][]int) []int {
	level := make([]int, len(needs))
	for i, list := range needs {
		for _, need := range list {
			level[i] = max(level[i], level[need]+1)
		}
	}

	return level
}

// addSlots adds the cards, and a lane for each step in each column between it and the last step that needs it. The lines from a step share
// their lane, so a column has at most one slot for each step.
func (g *flowGraph) addSlots(cards []flowCard, needs [][]int, level []int) {
	last := slices.Clone(level) // the last column to which lines from each step lead
	for i, list := range needs {
		for _, need := range list {
			last[need] = max(last[need], level[i])
		}
	}

	for i := range cards {
		for column := level[i]; column == level[i] || column < last[i]; column++ {
			for len(g.Columns) <= column {
				g.Columns = append(g.Columns, nil)
			}
			slot := flowSlot{step: i}
			if column == level[i] {
				slot.Card = &cards[i]
			}
			g.Columns[column] = append(g.Columns[column], slot)
		}
	}
}

// place computes where the slots are.
func (g *flowGraph) place() {
	for _, slots := range g.Columns {
		y := 0.0
		for i := range slots {
			height := laneHeight
			if slots[i].Card != nil {
				height = cardHeight
			}
			slots[i].y = y + height/2
			y += height + slotGap
		}
		g.height = max(g.height, y-slotGap)
	}
}

// slotOrder sorts the slots of each column such that few lines cross: each near the middle of those with which lines connect it.
type slotOrder struct {
	columns [][]flowSlot
	needs   [][]int
	users   [][]int // the steps that need each one
	level   []int
	at      []map[int]int // by column and step: the place of its slot
}

// slotRounds is how often the columns are sorted. More rounds change little.
const slotRounds = 4

func newSlotOrder(columns [][]flowSlot, needs [][]int, level []int) *slotOrder {
	o := &slotOrder{columns: columns, needs: needs, users: make([][]int, len(needs)), level: level, at: make([]map[int]int, len(columns))}
	for i, list := range needs {
		for _, need := range list {
			o.users[need] = append(o.users[need], i)
		}
	}
	for column := range columns {
		o.note(column)
	}

	return o
}

// note notes the places of the slots of a column.
func (o *slotOrder) note(column int) {
	o.at[column] = map[int]int{}
	for i, slot := range o.columns[column] {
		o.at[column][slot.step] = i
	}
}

func (o *slotOrder) arrange() {
	for range slotRounds {
		for column := len(o.columns) - 2; column >= 0; column-- {
			o.sort(column, o.after)
		}
		for column := 1; column < len(o.columns); column++ {
			o.sort(column, o.before)
		}
	}
}

// sort sorts the slots of a column by the mean place of their neighbors. Those without any stay about where they are.
func (o *slotOrder) sort(column int, neighbors func(column int, slot flowSlot) []int) {
	mean := map[int]float64{}
	for i, slot := range o.columns[column] {
		mean[slot.step] = float64(i)
		if places := neighbors(column, slot); len(places) > 0 {
			sum := 0
			for _, place := range places {
				sum += place
			}
			mean[slot.step] = float64(sum) / float64(len(places))
		}
	}

	slices.SortStableFunc(o.columns[column], func(a, b flowSlot) int {
		if order := cmp.Compare(mean[a.step], mean[b.step]); order != 0 {
			return order
		}
		switch { // a chain of cards stays on one line
		case a.Card != nil && b.Card == nil:
			return -1
		case a.Card == nil && b.Card != nil:
			return 1
		}
		return 0
	})
	o.note(column)
}

// before returns the places, in the column before, of the slots from which lines lead to a slot.
func (o *slotOrder) before(column int, slot flowSlot) []int {
	if slot.Card == nil {
		return []int{o.at[column-1][slot.step]} // the card of the step, or its lane
	}

	var places []int
	for _, need := range o.needs[slot.step] {
		places = append(places, o.at[column-1][need])
	}

	return places
}

// after returns the places, in the next column, of the slots to which lines lead from a slot.
func (o *slotOrder) after(column int, slot flowSlot) []int {
	var places []int
	if place, has := o.at[column+1][slot.step]; has { // a lane
		places = append(places, place)
	}
	for _, user := range o.users[slot.step] {
		if o.level[user] == column+1 {
			places = append(places, o.at[column+1][user])
		}
	}

	return places
}

// laneClass returns the class of a line that leads into a lane: that of the lines which leave the lane, if they agree.
func (o *slotOrder) laneClass(column, step int, lineClass func(from, to int) string) string {
	class := ""
	for _, user := range o.users[step] {
		if o.level[user] <= column {
			continue
		}
		one := lineClass(step, user)
		if class != "" && class != one {
			return lineToCome
		}
		class = one
	}

	return class
}

// The classes of lines: the step at the end has begun or ended, it is skipped, or neither.
const (
	lineTaken  = "taken"
	lineOff    = "off"
	lineToCome = "coming"
)

// SVG draws the lines. The cards, which lie above it, say in words what they mean.
func (g *flowGraph) SVG() template.HTML {
	width := float64(len(g.Columns))*(cardWidth+columnGap) - columnGap

	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="lines" width="%.4grem" height="%.4grem" viewBox="0 0 %.4g %.4g" aria-hidden="true" focusable="false">`, width, g.height, width, g.height)
	for _, l := range g.lines {
		x := float64(l.column) * (cardWidth + columnGap)
		begin, middle, end := x-columnGap, x-columnGap/2, x
		if l.toCard {
			end -= arrowLength
		}
		fmt.Fprintf(&b, `<path class="%s" d="M%.4g %.4gC%.4g %.4g %.4g %.4g %.4g %.4g`, l.class, begin, l.from, middle, l.from, middle, l.to, end, l.to)
		if l.toCard {
			fmt.Fprintf(&b, `"/><path class="head %s" d="M%.4g %.4gl%.4g %.4gv%.4gz"/>`, l.class, x, l.to, -arrowLength, -arrowLength/2, arrowLength)
		} else {
			fmt.Fprintf(&b, `H%.4g"/>`, x+cardWidth)
		}
	}
	b.WriteString("</svg>")

	return template.HTML(b.String()) //nolint:gosec // it consists of numbers and literals
}

// arrowLength is the length of the head of an arrow, in rem.
const arrowLength = 0.55
