package task

import "testing"

func TestHasHash(t *testing.T) {
	t.Parallel()

	for schedule, want := range map[string]bool{
		"H * * * *": true, "H/15 * * * *": true, "0,H(30-59) * * * *": true, "H H * * *": true,
		"0 9 * * THU": false, "0 9 * MARCH *": false, "@hourly": false, "@at 2026-12-24T18:00:00Z": false,
	} {
		if got := hasHash(schedule); got != want {
			t.Errorf("%q: %t; want %t", schedule, got, want)
		}
	}
}
