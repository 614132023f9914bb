package task

import (
	"encoding/json"
	"strconv"
	"strings"
)

// PartNumbers contains numbers of parts in ascending order. In JSON it is a string with ranges, such as "0-41,43". The
// parts of a run are dispatched in order, so its record stays short, although it is written with each of them.
type PartNumbers []int

// MarshalJSON implements json.Marshaler.
func (n PartNumbers) MarshalJSON() ([]byte, error) {
	text := []byte{'"'}
	for i := 0; i < len(n); {
		last := i
		for last+1 < len(n) && n[last+1] == n[last]+1 {
			last++
		}

		if i > 0 {
			text = append(text, ',')
		}

		text = strconv.AppendInt(text, int64(n[i]), 10)
		if last > i {
			text = strconv.AppendInt(append(text, '-'), int64(n[last]), 10)
		}

		i = last + 1
	}

	return append(text, '"'), nil
}

// UnmarshalJSON implements json.Unmarshaler. It accepts at most MaxParts numbers from 0 to MaxParts-1.
func (n *PartNumbers) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}

	*n = nil
	if text == "" {
		return nil
	}

	for item := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(item, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(to)
		}

		if err != nil || first < 0 || last < first || last >= MaxParts || len(*n) > 0 && first <= (*n)[len(*n)-1] {
			return Invalid(CodeBadValue, "", "%s is not a list of ascending numbers and ranges from 0 to %d", Quote(text), MaxParts-1)
		}

		for i := first; i <= last; i++ {
			*n = append(*n, i)
		}
	}

	return nil
}
