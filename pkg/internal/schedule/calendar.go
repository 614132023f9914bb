package schedule

import (
	"fmt"
	"math/bits"
	"strings"
	"time"
)

// month is one calendar month of one year.
type month struct {
	first   int64 // the day number of its first day; day 0 is 1970-01-01
	number  uint8 // 1–12
	weekday uint8 // of its first day; Sunday is 0
	length  uint8 // in days
}

// calendarMonths holds every month from January 1970 to January 2101. A local clock can show these months at the
// instants from 1970-01-02 to the end of 2100.
var calendarMonths = func() (months [131*12 + 1]month) {
	for i := range months {
		first := time.Date(1970, time.January+time.Month(i), 1, 0, 0, 0, 0, time.UTC)
		months[i] = month{
			first:   first.Unix() / daySeconds,
			number:  uint8(first.Month()),
			weekday: uint8(first.Weekday()),
			length:  uint8(first.AddDate(0, 1, -1).Day()),
		}
	}

	return months
}()

// monthOf returns the month of a day number as an index of calendarMonths, and the number of the day in that month.
func monthOf(d int64) (i, n int) {
	// A month has 30.44 days on average. This is the right month or one next to it.
	i = min(int(d*100/3044), len(calendarMonths)-1)
	for i > 0 && calendarMonths[i].first > d {
		i--
	}

	for i+1 < len(calendarMonths) && calendarMonths[i+1].first <= d {
		i++
	}

	return i, int(d-calendarMonths[i].first) + 1
}

// special holds the days that a rule gives by their place in a month: L, LW and 15W in the day of the month, 5#3
// and 5L in the day of the week.
type special struct {
	lastDay     bool     // L
	lastWorkday bool     // LW
	nearest     uint32   // nW: bit n is the weekday from Monday to Friday nearest to day n, in the same month
	nth         [5]uint8 // 5#3: nth[i] has a bit for each weekday whose (i+1)-th occurrence matches
	last        uint8    // 5L: a bit for each weekday whose last occurrence matches
}

// monthDays returns the days that L, LW and nW select in a month, as bits 1–31. first is the weekday of the month's
// first day, length its number of days.
func (s *special) monthDays(first, length uint8) uint32 {
	var days uint32
	if s.lastDay {
		days |= 1 << length
	}

	if s.lastWorkday {
		days |= 1 << nearestWorkday(length, first, length)
	}

	for set := s.nearest & (1<<(length+1) - 1); set != 0; set &= set - 1 {
		days |= 1 << nearestWorkday(uint8(bits.TrailingZeros32(set)), first, length)
	}

	return days
}

// nearestWorkday returns the day from Monday to Friday that is nearest to day n of a month, within that month. It
// moves by two days only at the ends of the month.
func nearestWorkday(n, first, length uint8) uint8 {
	switch weekday := time.Weekday((first + n - 1) % 7); {
	case weekday == time.Saturday && n == 1:
		return n + 2
	case weekday == time.Saturday:
		return n - 1
	case weekday == time.Sunday && n == length:
		return n - 2
	case weekday == time.Sunday:
		return n + 1
	}

	return n
}

// weekDays returns the days that 5#3 and 5L select in a month, as bits 1–31.
func (s *special) weekDays(first, length uint8) uint32 {
	var days uint32
	for n, weekdays := range s.nth {
		const week = 1<<7 - 1

		// The (n+1)-th occurrence of a weekday is in the (n+1)-th group of seven days.
		days |= inMonth(weekdays, first) & (week << uint(1+7*n))
	}

	// The last occurrence of a weekday is in the last seven days.
	return days | inMonth(s.last, first)&^(1<<(length-6)-1)
}

// inMonth returns the days of a month that fall on one of some weekdays, as bits from 1 on. It also sets bits
// beyond the month's last day.
func inMonth(weekdays, first uint8) uint32 {
	week := uint64(weekdays)
	weeks := (week | week<<7 | week<<14 | week<<21 | week<<28 | week<<35) >> first
	return uint32(weeks << 1) // bit 1 is the first day of the month
}

// extractSpecial removes the special items from a field, and returns the rest of it.
func (s *special) extractSpecial(f *field, text string) (string, error) {
	var rest []string
	for _, item := range strings.Split(text, ",") {
		if item == "" {
			return "", fmt.Errorf("%s has an empty item in its list", f.name)
		}

		taken, err := false, error(nil)

		switch f {
		case dayOfMonth:
			taken, err = s.takeDay(item)
		case dayOfWeek:
			taken, err = s.takeWeekday(item)
		}

		if err != nil {
			return "", err
		}

		if !taken {
			rest = append(rest, item)
		}
	}

	return strings.Join(rest, ","), nil
}

// takeDay adds an item of the day of the month if it is special, and reports whether it is.
func (s *special) takeDay(item string) (bool, error) {
	text := strings.ToUpper(item)
	day, near := strings.CutSuffix(text, "W")
	switch {
	case text == "L":
		s.lastDay = true
	case text == "LW":
		s.lastWorkday = true
	case strings.HasPrefix(text, "L"):
		return false, fmt.Errorf("day of month %s: L (last day) and LW (last working day) cannot be combined with anything else", shorten(item))
	case near && day == "":
		return false, fmt.Errorf("day of month %s: W requires a day; did you mean 15W, or LW, the last working day?", shorten(item))
	case near && !isNumber(day):
		return false, fmt.Errorf("day of month %s: W takes one day, such as 15W; the last working day is LW", shorten(item))
	case near:
		n, err := dayOfMonth.parseValue(item, day)
		if err != nil {
			return false, err
		}
		s.nearest |= 1 << uint(n)
	default:
		return false, nil
	}

	return true, nil
}

// takeWeekday adds an item of the day of the week if it is special, and reports whether it is.
func (s *special) takeWeekday(item string) (bool, error) {
	text := strings.ToUpper(item)
	day, place, isNth := strings.Cut(text, "#")
	if isNth {
		n, ok := parseDigits(place)
		if !ok || n < 1 || n > len(s.nth) {
			return false, fmt.Errorf("day of week %s: # requires a number from 1 to 5: 5#3 is the third Friday, 5L is the last one", shorten(item))
		}

		if day == "" {
			return false, fmt.Errorf("day of week %s: # requires a day: MON#%d is the %s Monday", shorten(item), n, formatOrdinal(n))
		}

		weekday, err := dayOfWeek.parseValue(item, day)
		if err != nil {
			return false, err
		}

		s.nth[n-1] |= 1 << uint(weekday%7)

		return true, nil
	}

	day, isLast := strings.CutSuffix(text, "L")
	switch {
	case !isLast:
		return false, nil
	case day == "":
		return false, fmt.Errorf("day of week %s: L requires a day: 5L is the last Friday", shorten(item))
	}

	weekday, err := dayOfWeek.parseValue(item, day)
	if err != nil {
		return false, err
	}

	s.last |= 1 << uint(weekday%7)

	return true, nil
}
