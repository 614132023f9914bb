package schedule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Expressions that users write and that are rejected, with the suggestion, which is itself a valid schedule.
func TestCheck_SuggestsTheNearestRightThing(t *testing.T) {
	for expr, want := range map[string]string{
		"*/75 * * * *":         "@every 75m",
		"60 * * * *":           "0 * * * *",
		"0 24 * * *":           "0 0 * * *",
		"0 24 * * MON":         "", // the end of Monday is on Tuesday
		"60 9 * * *":           "", // 10:00
		"0 60 9 * * *":         "",
		"*/5 */36 * * *":       "", // 12 ticks each time
		"0 */36 * * *":         "@every 36h",
		"0 9 MON-FRI * *":      "0 9 * * MON-FRI",
		"0 9 * MON *":          "0 9 * * MON",
		"0 9 1 * JAN":          "0 9 1 JAN *",
		"? ? 12 * * MON-FRI":   "", // "no specific value" may mean any one second
		"? 0 * * *":            "",
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
		"every minute":         "* * * * *", // @every would count from when the task is written
		"every hour":           "@hourly",
		"every day":            "@daily",
		"90s":                  "@every 1m30s",
		"5":                    "",
		"@every 10 secs":       "@every 10s",
		"@every 5min":          "5m",
		"@every 1day":          "24h",
		"@in 5 minutes":        "@in 5m",
		"2026-12-24T18:00:00Z": "@at 2026-12-24T18:00:00Z",

		// EventBridge: minute, hour, day of month, month, day of week, year. With seconds in front, it would run 24 to 60 times
		// as often.
		"0/15 * * * ? *":          "0/15 * * * *",
		"0 10 * * ? *":            "0 10 * * *",
		"0 0 1 * ? *":             "0 0 1 * *",
		"15 12 * * ? *":           "15 12 * * *",
		"0 18 ? * MON-FRI *":      "0 18 * * MON-FRI",
		"0 18 ? * 2-6 *":          "0 18 * * MON-FRI", // 1 is Sunday there
		"0 18 ? * 6#3 *":          "0 18 * * FRI#3",
		"0 18 ? * 2-6 2027":       "",
		"cron(0 10 * * ? *)":      "0 10 * * *",
		"rate(5 minutes)":         "@every 5m",
		"rate(1 day)":             "@every 24h",
		"at(2026-06-15T09:00:00)": "@at 2026-06-15T09:00:00Z",

		// Other schedulers.
		"@manually":              "@manual",
		"@never":                 "@manual",
		"@minutely":              "* * * * *",
		"@weekdays":              "0 0 * * MON-FRI",
		"*-*-* 02:00:00":         "0 2 * * *",
		"Mon..Fri 09:00":         "0 9 * * MON-FRI",
		"Mon,Wed *-*-* 18:30:00": "30 18 * * MON,WED",

		// A step of the field's size matches its first value. @every would count from when the task is written.
		"*/60 * * * *":   "0 * * * *",
		"0 */24 * * *":   "0 0 * * *",
		"*/60 */2 * * *": "0 */2 * * *",

		"@every 1h30": "1h30m",
		"@every5m":    "@every 5m",
		"hourly":      "@hourly",
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

// A year cannot be written in an expression, so the message says what to use.
func TestCheck_SaysWhatToUseForYears(t *testing.T) {
	for _, expr := range []string{"0 0 20 19 8 ? 2019", "0 0 1 1 * 2027", "0 0 1 1 ? 2027-2029", "cron(0/15 * * * ? 2027)"} {
		err := schedule.Check(task.Timing{Schedule: []string{expr}})
		if err == nil || !strings.HasSuffix(err.Error(), "; for one date use @at, and for certain years the fields start and end") {
			t.Errorf("%q: %v", expr, err)
		}
	}
}

// Without the name of the task, too, a nickname without @ is not taken for an H.
func TestNew_SuggestsANickname(t *testing.T) {
	if _, err := schedule.Parse(task.Timing{Schedule: []string{"hourly"}}, time.Time{}); err == nil || !strings.Contains(err.Error(), "@hourly") {
		t.Error(err)
	}
}

func TestLocation_SuggestsTheNearestRightThing(t *testing.T) {
	for zone, want := range map[string]string{
		"berlin": "Europe/Berlin", "Berlin": "Europe/Berlin", "Europe/Berln": "Europe/Berlin", "new york": "America/New_York",
		"CEST": "Europe/Berlin", "PST": "America/Los_Angeles", "ist": "Asia/Kolkata", "UTC+2": "Etc/GMT-2", "GMT-03:00": "Etc/GMT+3", "+05:30": "",
		"Z": "UTC", "Mars/Olympus": "", "utc": "UTC", "Asia/Beijing": "Asia/Shanghai", "America/San Francisco": "America/Los_Angeles",
		"W. Europe Standard Time": "Europe/Berlin", "Munich": "Europe/Berlin", "Eastern Time": "America/New_York", "Asia/Calcuta": "Asia/Calcutta", "US/Pacifc": "US/Pacific",
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
