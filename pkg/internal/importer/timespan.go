package importer

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// spanUnits maps the units of systemd to durations.
var spanUnits = map[string]time.Duration{
	"": time.Second, "s": time.Second, "sec": time.Second, "second": time.Second, "seconds": time.Second,
	"ms": time.Millisecond, "msec": time.Millisecond, "us": time.Microsecond, "usec": time.Microsecond,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute, "minutes": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hour": time.Hour, "hours": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour, "days": 24 * time.Hour,
	"w": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour, "weeks": 7 * 24 * time.Hour,
	"M": 730*time.Hour + 30*time.Minute, "month": 730*time.Hour + 30*time.Minute, "months": 730*time.Hour + 30*time.Minute, // 30.44 days
	"y": 8766 * time.Hour, "year": 8766 * time.Hour, "years": 8766 * time.Hour, // 365.25 days
}

// parseTimespan parses a time span of systemd: 1h 30min, 90, 2d. "infinity" is 0.
func parseTimespan(text string) (time.Duration, error) {
	if text == "infinity" {
		return 0, nil
	}

	var total float64
	rest := strings.TrimSpace(text)
	if rest == "" {
		return 0, fmt.Errorf("is empty")
	}

	for rest != "" {
		end := strings.IndexFunc(rest, func(r rune) bool { return !unicode.IsDigit(r) && r != '.' })
		if end < 0 {
			end = len(rest)
		}

		n, err := strconv.ParseFloat(rest[:end], 64)
		if err != nil {
			return 0, fmt.Errorf("%s is not a span of time", quoteShort(text))
		}

		rest = strings.TrimLeft(rest[end:], " \t")
		end = strings.IndexFunc(rest, func(r rune) bool { return !unicode.IsLetter(r) })
		if end < 0 {
			end = len(rest)
		}

		unit, ok := spanUnits[rest[:end]]
		if !ok {
			return 0, fmt.Errorf("%s: %s is not a unit of time", quoteShort(text), quoteShort(rest[:end]))
		}

		total += n * float64(unit)
		rest = strings.TrimLeft(rest[end:], " \t")
	}

	if total > float64(100*8766*time.Hour) {
		return 0, fmt.Errorf("%s is longer than a hundred years", quoteShort(text))
	}

	return time.Duration(total), nil
}
