package ask

import (
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// MaxMakers is the maximum number of minutes whose makers one question asks for: those of the peaks, and a chosen one.
const MaxMakers = 21

// loadText is a range of a load as a query parameter.
type loadText struct{ *readmodel.LoadRange }

// formatLoad formats a range as loadText parses it.
func formatLoad(l *readmodel.LoadRange) string {
	text := strconv.FormatInt(l.From, 10) + "," + strconv.Itoa(l.Minutes)
	for _, minute := range l.Makers {
		text += "," + strconv.Itoa(minute)
	}

	return text
}

// UnmarshalText parses a range.
func (t *loadText) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return nil
	}

	var numbers []int64
	for word := range strings.SplitSeq(string(text), ",") {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil || n < 0 {
			return task.Invalid(task.CodeBadValue, "", "%s is not a number", task.Quote(word))
		}
		numbers = append(numbers, n)
	}

	if len(numbers) < 2 || len(numbers) > 2+MaxMakers {
		return task.Invalid(task.CodeBadValue, "", "%d numbers; from 2 to %d are allowed", len(numbers), 2+MaxMakers)
	}

	const minute = 60_000
	if numbers[0]%minute != 0 || numbers[1] < 1 || numbers[1] > readmodel.MaxLoadMinutes {
		return task.Invalid(task.CodeOutOfRange, "", "%s does not begin with a whole minute and a number of minutes up to %d", task.Quote(string(text)), readmodel.MaxLoadMinutes)
	}

	l := &readmodel.LoadRange{From: numbers[0], Minutes: int(numbers[1])}
	for _, n := range numbers[2:] {
		if n >= numbers[1] {
			return task.Invalid(task.CodeOutOfRange, "", "%d is not one of %d minutes", n, numbers[1])
		}
		l.Makers = append(l.Makers, int(n))
	}

	t.LoadRange = l

	return nil
}
