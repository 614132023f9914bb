package tickpolicy

import "time"

// start is the time of all tests.
var start = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// sec returns an instant some seconds after the start.
func sec(s float64) time.Time {
	return start.Add(time.Duration(s * float64(time.Second)).Round(time.Microsecond))
}
