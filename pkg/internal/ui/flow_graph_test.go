package ui

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// graphOf returns the graph of steps with the names s0, s1 and so on.
func graphOf(needs ...[]int) *flowGraph {
	cards := make([]flowCard, len(needs))
	for i := range cards {
		cards[i] = newFlowCard(fmt.Sprint("s", i))
	}

	return newFlowGraph(cards, needs, func(int, int) string { return lineTaken })
}

// text returns the columns of a graph: names of cards, and lanes as the step whose lines pass, in parentheses.
func (g *flowGraph) text() string {
	var columns []string
	for _, slots := range g.Columns {
		var words []string
		for _, slot := range slots {
			if slot.Card != nil {
				words = append(words, slot.Card.Name)
			} else {
				words = append(words, fmt.Sprintf("(s%d)", slot.step))
			}
		}
		columns = append(columns, strings.Join(words, " "))
	}

	return strings.Join(columns, " | ")
}

func TestFlowGraph_ArrangesSteps(t *testing.T) {
	for _, c := range []struct {
		name, want string
		needs      [][]int
	}{
		{"one", "s0", [][]int{nil}},
		{"a chain", "s0 | s1 | s2", [][]int{nil, {0}, {1}}},
		{"a line past a step has a lane", "s0 | s1 (s0) | s2", [][]int{nil, {0}, {0, 1}}},
		{"lines from one step share a lane", "s0 | s1 (s0) | s2 s3 s4", [][]int{nil, {0}, {0, 1}, {0, 1}, {0, 1}}},
		{"lines do not cross without need", "s1 s0 | s2 s3", [][]int{nil, nil, {1}, {0}}},
	} {
		if got := graphOf(c.needs...).text(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Whatever the graph, each step has one card, each need a line that ends at the card, and no two slots of a column overlap.
func TestFlowGraph_ShowsEverythingOnce(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		needs := make([][]int, 1+rnd.IntN(30))
		count := 0
		for i := range needs {
			for need := range i {
				if rnd.IntN(6) == 0 {
					needs[i] = append(needs[i], need)
					count++
				}
			}
		}

		g := graphOf(needs...)
		seen := map[int]int{}
		for column, slots := range g.Columns {
			end := -slotGap
			for _, slot := range slots {
				half := laneHeight / 2
				if slot.Card != nil {
					half = cardHeight / 2
					if seen[slot.step]++; slices.ContainsFunc(needs[slot.step], func(need int) bool { return levelsOf(needs)[need] >= column }) {
						t.Fatalf("a step is not behind what it needs: %v: %s", needs, g.text())
					}
				}
				if slot.y-half < end+slotGap-1e-9 {
					t.Fatalf("slots overlap: %s", g.text())
				}
				end = slot.y + half
			}
		}
		if len(seen) != len(needs) {
			t.Fatalf("%d of %d steps: %s", len(seen), len(needs), g.text())
		}

		heads := 0
		for _, l := range g.lines {
			if l.toCard {
				heads++
			}
		}
		if heads != count {
			t.Fatalf("%d lines for %d needs of %v", heads, count, needs)
		}
	}
}

// Values of other kinds cannot get into the drawing, because it is not escaped.
func TestFlowGraph_DrawsOnlyNumbers(t *testing.T) {
	svg := string(graphOf(nil, []int{0}, []int{0, 1}).SVG())
	if !regexp.MustCompile(`^<svg class="lines" width="45rem" height="7.2rem" viewBox="0 0 45 7.2" aria-hidden="true" focusable="false">(<path class="(head )?taken" d="[MCHlvz0-9. -]+"/>)+</svg>$`).MatchString(svg) {
		t.Errorf("got %s", svg)
	}
}

// The sizes of cards are in the style sheet, too.
func TestFlowGraph_HasTheSizesOfTheStyleSheet(t *testing.T) {
	b, err := embedded.ReadFile("static/app.css")
	must(t, err)
	want(t, string(b),
		fmt.Sprintf(".flow .graph { position: relative; grid-auto-columns: %grem; gap: 0 %grem;", cardWidth, columnGap),
		fmt.Sprintf(".flow .graph ul li { height: %grem;", cardHeight),
		fmt.Sprintf(".flow .graph ul li.lane { height: %grem;", laneHeight),
		strings.Replace(fmt.Sprintf(".flow .graph ul { gap: %grem; }", slotGap), "0.", ".", 1))
}

func TestFlowCard_ShortensNamesInTheMiddle(t *testing.T) {
	if c := newFlowCard("load-orders"); c.Short != "" {
		t.Errorf("got %q", c.Short)
	}
	if c := newFlowCard("import-of-orders-from-the-shop-in-vienna"); c.Short != "import-o…in-vienna" {
		t.Errorf("got %q", c.Short)
	}
}
