package schedule

import "time"

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
