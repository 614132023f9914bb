package schedule

import (
	"fmt"
	"strings"
)

// setMembers returns the members of a bit set in ascending order.
func setMembers(set uint64) []int {
	var list []int
	for n := range 64 {
		if set>>n&1 != 0 {
			list = append(list, n)
		}
	}

	return list
}

// beat is a list of values at equal distances: from, from+by, … to.
type beat struct{ from, to, by int }

// beatOf returns the beat that a list of at least three values forms, or false if it forms none.
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

// isSteady reports whether the beat continues evenly over the end of a round, such as the 60 minutes of an hour.
func (b beat) isSteady(round int) bool {
	return round%b.by == 0 && b.from < b.by && b.to+b.by >= round
}

// isContiguous reports whether values follow each other without a gap. A single value does.
func isContiguous(list []int) bool { return list[len(list)-1]-list[0] == len(list)-1 }

// enumerateValues lists values by name. It shortens three or more consecutive values to their first and last.
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

// joinWithAnd joins items as "a, b and c".
func joinWithAnd(items []string) string {
	if len(items) < 2 {
		return strings.Join(items, "")
	}
	return strings.Join(items[:len(items)-1], ", ") + " and " + items[len(items)-1]
}

// formatOrdinal formats a number as 1st, 2nd, 3rd, 4th.
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

// twoDigits formats a number with two digits.
func twoDigits(n int) string { return fmt.Sprintf("%02d", n) }
