package schedule_test

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Expressions that users write and that are rejected, with the suggestion, which is itself a valid schedule.
func TestCheck_SuggestsTheNearestRightThing(t *testing.T) {
	for expr, want := range map[string]string{
		"*/75 * * * *":         "@every 75m",
		"60 * * * *":           "0 * * * *",
		"0 24 * * *":           "0 0 * * *",
		"0 9 MON-FRI * *":      "0 9 * * MON-FRI",
		"0 9 * MON *":          "0 9 * * MON",
		"0 9 1 * JAN":          "0 9 1 JAN *",
		"? ? 12 * * MON-FRI":   "* * 12 * * MON-FRI",
		"0 0 12 * * ? *":       "0 0 12 * * ?",
		"0 0 12 * * ? 2027":    "",
		"0 0 * JANUARY *":      "0 0 * JAN *",
		"0 0 * * Monday":       "0 0 * * MON",
		"0 0 * * MO":           "0 0 * * MON",
		"0 0 * * 8":            "",
		"0 0 * JAN-MON *":      "", // each field contains a name of the other
		"0 0 * * FRI-MAR":      "",
		"* * * *":              "",
		"@dialy":               "@daily",
		"@hourl":               "@hourly",
		"@evry 5m":             "@every",
		"@fortnightly":         "",
		"daily":                "@daily",
		"02:30":                "30 2 * * *",
		"every 5 minutes":      "@every 5m",
		"every minute":         "@every 1m",
		"every day":            "@daily",
		"90s":                  "@every 1m30s",
		"5":                    "",
		"@every 10 secs":       "@every 10s",
		"@every 5min":          "5m",
		"@every 1day":          "24h",
		"@in 5 minutes":        "@in 5m",
		"2026-12-24T18:00:00Z": "@at 2026-12-24T18:00:00Z",
	} {
		err := schedule.Check(task.Timing{Schedule: []string{expr}})
		switch {
		case err == nil:
			t.Errorf("%q is taken", expr)
		case want == "" && strings.Contains(err.Error(), "did you mean"):
			t.Errorf("%q: %v", expr, err)
		case want != "" && !strings.HasSuffix(err.Error(), "did you mean \""+want+"\"?") && !strings.HasSuffix(err.Error(), "did you mean "+want+"?"):
			t.Errorf("%q: %v; want %s", expr, err, want)
		case strings.Contains(want, " ") && schedule.Check(task.Timing{Schedule: []string{want}}) != nil:
			t.Errorf("%q is suggested, and refused", want)
		}
	}
}

func TestLocation_SuggestsTheNearestRightThing(t *testing.T) {
	for zone, want := range map[string]string{
		"berlin": "Europe/Berlin", "Berlin": "Europe/Berlin", "Europe/Berln": "Europe/Berlin", "new york": "America/New_York",
		"CEST": "Europe/Berlin", "PST": "America/Los_Angeles", "ist": "Asia/Kolkata", "UTC+2": "Etc/GMT-2", "GMT-03:00": "Etc/GMT+3", "+05:30": "",
		"Z": "UTC", "Mars/Olympus": "", "utc": "UTC", "Asia/Calcuta": "Asia/Calcutta", "US/Pacifc": "US/Pacific",
	} {
		_, err := schedule.Location(zone)
		switch {
		case err == nil:
			t.Errorf("%q is taken", zone)
		case want == "" && (strings.Contains(err.Error(), "did you mean") || strings.Contains(err.Error(), "Etc/")):
			t.Errorf("%q: %v", zone, err)
		case want != "" && !strings.Contains(err.Error(), "\""+want+"\""):
			t.Errorf("%q: %v; want %s", zone, err, want)
		case want != "":
			if _, err := schedule.Location(want); err != nil {
				t.Errorf("%q is suggested, and refused: %v", want, err)
			}
		}
	}

	for _, zone := range []string{"CET", "EST", "MST7MDT"} { // these are in the database, with their rules
		if _, err := schedule.Location(zone); err != nil {
			t.Error(err)
		}
	}
}
