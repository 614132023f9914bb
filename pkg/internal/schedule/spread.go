package schedule

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/carillonhq/carillon/pkg/task"
)

// maxSpread is how many bytes an expression with H may have. With numbers in the place of H it is less than twice
// as long, so that it stays within maxLength.
const maxSpread = maxLength / 2

// Spread replaces H by numbers, so that tasks with the same schedule have ticks at different times, but each task
// always at the same times. A number is derived from the task's namespace and name, and from the field:
//
//	H          any value of the field; of the days of a month 1 to 28
//	H(2-5)     one of these
//	H/15       every 15th value, starting with one of the first 15
//	H(2-9)/3   every third of these, starting with one of the first three
//
// The derivation must not change between versions, because it would move the ticks of existing tasks. Expressions
// without H are returned as they are, unchecked. The error is a *task.Error of the field "schedule" or
// "schedule[i]".
func Spread(exprs []string, namespace, name string) (task.Schedules, error) {
	list := slices.Clone(task.Schedules(exprs))
	for i, text := range exprs {
		if !UsesHash(text) {
			continue
		}

		field := fieldName(exprs, i)
		if _, err := parseExpression(field, text, true); err != nil {
			return nil, err
		}

		words, err := spreadWords(strings.Fields(text), namespace, name)
		if err != nil {
			return nil, err // cannot happen: the expression was parsed
		}

		list[i] = strings.Join(words, " ")
	}

	return list, nil
}

// UsesHash reports whether an expression contains H.
func UsesHash(expr string) bool {
	words := strings.Fields(expr)
	return len(words) > 0 && words[0][0] != '@' && slices.ContainsFunc(words, hasH)
}

// isDelay reports whether an expression is an @in, or an @at without an offset. Both become an instant when a task is written.
func isDelay(expr string) bool {
	words := strings.Fields(expr)
	return len(words) > 0 && (words[0] == inExpr || words[0] == "@at" && len(words) > 1 && !rfc3339.MatchString(words[1]))
}

// hasH reports whether a field has an item that begins with H.
func hasH(word string) bool {
	return word[0] == 'H' || word[0] == 'h' || strings.Contains(word, ",H") || strings.Contains(word, ",h")
}

// spreadWords replaces H in the fields of an expression.
func spreadWords(words []string, namespace, name string) ([]string, error) {
	first := maxFields - len(words)
	if first < 0 || first > 1 {
		return words, nil // not a cron expression; parseCron rejects it
	}

	words = slices.Clone(words)
	for i, word := range words {
		if !hasH(word) {
			continue
		}

		f := &cronFields[first+i]

		// Each field has its own hash, so that a task's minute and hour are independent.
		hash := xxhash.Sum64String(namespace + "/" + name + "/" + f.name)

		items := strings.Split(word, ",")
		for j, item := range items {
			if item == "" || item[0]|0x20 != 'h' {
				continue
			}

			plain, err := f.resolveHash(item, hash)
			if err != nil {
				return nil, err
			}

			items[j] = plain
		}

		words[i] = strings.Join(items, ",")
	}

	return words, nil
}

// resolveHash replaces one item that begins with H.
func (f *field) resolveHash(item string, hash uint64) (string, error) {
	low, high := f.min, f.maxValue()
	if f.max == 31 {
		high = 28 // every month has this day
	}

	// An item is H, H(low-high), or either with /step.
	values, step, stepped := strings.Cut(item[1:], "/")
	if values != "" {
		inner, ok := strings.CutPrefix(values, "(")
		inner, closed := strings.CutSuffix(inner, ")")
		from, to, ranged := strings.Cut(inner, "-")
		if !ok || !closed || !ranged {
			return "", fmt.Errorf("%s %s: use H, H(%d-%d), H/2 or H(%d-%d)/2", f.name, shorten(item), low, high, low, high)
		}

		greatest := high
		var err error
		if low, err = f.parseValue(item, from); err != nil {
			return "", err
		}
		if high, err = f.parseValue(item, to); err != nil {
			return "", err
		}

		switch {
		case low > high:
			ranges := fmt.Sprintf("H(%d-%d)", f.min, min(high, greatest))
			if low <= greatest {
				ranges = fmt.Sprintf("H(%d-%d) or ", low, greatest) + ranges
			}
			return "", fmt.Errorf("%s %s has its bounds in the wrong order; H takes one range, %s", f.name, shorten(item), ranges)
		case high > greatest:
			return "", fmt.Errorf("%s %s is greater than %d, the maximum for H", f.name, shorten(item), greatest)
		}
	}

	// Without a step, choose one of the values. With a step, choose where the steps begin.
	count := high - low + 1

	if !stepped {
		return strconv.Itoa(low + int(hash%uint64(count))), nil
	}

	by, err := f.parseStep(item, step)
	if err != nil {
		return "", err
	}

	from := low + int(hash%uint64(min(by, count)))

	return fmt.Sprintf("%d-%d/%d", from, high, by), nil
}

// Resolve replaces @in by @at with the time that is that long after now, and gives the time of an @at without an offset that of
// the time zone. Other expressions are returned as they are, unchecked. The error is a *task.Error of the field "schedule" or
// "schedule[i]", or of the field "timezone".
func Resolve(exprs []string, timezone string, now time.Time) (task.Schedules, error) {
	list := slices.Clone(task.Schedules(exprs))
	for i, text := range exprs {
		if !isDelay(text) {
			continue
		}

		field := fieldName(exprs, i)
		e, err := parseExpression(field, text, true)
		if err != nil {
			return nil, err
		}

		at := task.At(instantOf(clampToMS(now) + e.in))
		if e.local != "" {
			if at, err = resolveLocal(e.local, timezone, now); err != nil {
				return nil, task.Under(field, err)
			}
		}
		if at.Unix() < firstWritten || at.Unix() >= endSecond {
			return nil, task.Invalid(task.CodeBadTime, field, "%s: the time is outside the years 2000 to 2100", task.Quote(text))
		}

		text, err := at.MarshalText()
		if err != nil {
			return nil, fmt.Errorf("write a time: %w", err)
		}

		list[i] = "@at " + string(text)
	}

	return list, nil
}

// resolveLocal returns the instant of a time in a time zone.
func resolveLocal(text, timezone string, now time.Time) (task.Time, error) {
	z, err := findZone(timezone)
	if err != nil {
		return task.Time{}, err
	}

	at, err := ReadInstant(text, TimeBase{Now: now, Zone: z.location, Direction: Future})

	return task.At(at), err
}

// Due returns when a tick of the task with this uid is due: at the tick, or with jitter up to that much later, by a
// hash of uid and tick. It is always before the next tick. It may be later than the schedule's end.
//
// The hash is part of the protocol. It must not change between versions, because owners of different versions would
// otherwise disagree about when a tick is due.
func (s *Schedule) Due(tick time.Time, uid string) time.Time {
	width := s.jitterWidth(tick)
	if width <= 1 {
		return tick
	}

	var space [64]byte
	text := append(append(space[:0], uid...), '/')
	text = strconv.AppendInt(text, tick.UnixMilli(), 10)
	delay := xxhash.Sum64(text) % uint64(width)

	return tick.Add(time.Duration(delay) * time.Millisecond)
}

// DueBefore returns the first instant by which a tick is certainly due, whatever the uid: later than any that Due
// returns, or the tick itself without jitter.
func (s *Schedule) DueBefore(tick time.Time) time.Time {
	return tick.Add(time.Duration(s.jitterWidth(tick)) * time.Millisecond)
}

// jitterWidth returns within how many ms after a tick it is due: the jitter, or the time to the next tick if that
// is shorter.
func (s *Schedule) jitterWidth(tick time.Time) int64 {
	if s.plan.jitter == 0 {
		return 0
	}

	at := clampToMS(tick)
	if next := s.nextAfter(at); next != noInstant {
		return min(s.plan.jitter, next-at)
	}

	return s.plan.jitter
}

// LastDue returns the last tick that is due at upTo for the task with this uid, or false if none is.
func (s *Schedule) LastDue(upTo time.Time, uid string) (tick time.Time, ok bool) {
	at := s.previousTo(clampToMS(upTo))
	if at != noInstant && s.Due(instantOf(at), uid).After(upTo) {
		at = s.previousTo(at - 1) // due before the tick that follows it
	}

	if at == noInstant {
		return time.Time{}, false
	}

	return instantOf(at), true
}

// instantOf converts ms to a time in UTC.
func instantOf(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
