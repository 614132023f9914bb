package schedule

import (
	"fmt"
	"strings"
)

// setMembers are the members of a bit set, in order.
func setMembers(set uint64) []int {
	var list []int
	for n := range 64 {
		if set>>n&1 != 0 {
			list = append(list, n)
		}
	}

	return list
}

// A beat is values at equal distances: from, from+by, … to.
type beat struct{ from, to, by int }

// beatOf is the beat that three values or more are; false if they are none.
func beatOf(list []int) (beat, bool) {
	if len(list) < 3 {
		return beat{}, false
	}

	b := beat{list[0], list[len(list)-1], list[1] - list[0]}

	for i := range list[1:] {
		if list[i+1]-list[i] != b.by {
			return beat{}, false
		}
	}

	return b, true
}

// isSteady reports whether the beat goes on over the end of a round of so many
// values, such as the 60 minutes of an hour.
func (b beat) isSteady(round int) bool {
	return round%b.by == 0 && b.from < b.by && b.to+b.by >= round
}

// isContiguous reports whether values follow each other without a gap: one is a row, too.
func isContiguous(list []int) bool { return list[len(list)-1]-list[0] == len(list)-1 }

// enumerateValues names values, rows of three or more by their ends.
func enumerateValues(list []int, name func(int) string) string {
	var items []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}

		if j-i >= 2 {
			items = append(items, name(list[i])+" to "+name(list[j]))
		} else {
			for k := i; k <= j; k++ {
				items = append(items, name(list[k]))
			}
		}

		i = j + 1
	}

	return joinWithAnd(items)
}

// joinWithAnd makes "a, b and c" of items.
func joinWithAnd(items []string) string {
	if len(items) < 2 {
		return strings.Join(items, "")
	}
	return strings.Join(items[:len(items)-1], ", ") + " and " + items[len(items)-1]
}

// formatOrdinal is 1st, 2nd, 3rd, 4th.
func formatOrdinal(n int) string {
	suffix := "th"
	if n/10%10 != 1 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}

	return fmt.Sprintf("%d%s", n, suffix)
}

func twoDigits(n int) string { return fmt.Sprintf("%02d", n) }
