package schedule_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

var (
	noDST  = task.DST{}
	anchor = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

func TestCheck_RefusesBadExpressions(t *testing.T) {
	for _, c := range []struct{ expr, code, says string }{
		{"", task.CodeRequired, "a schedule is required"},
		{"   ", task.CodeRequired, "a schedule is required"},
		{strings.Repeat("*", 257), task.CodeTooLong, "is 257 bytes long; at most 256 are allowed"},
		{"0" + strings.Repeat(",0", 300) + " * * * *", task.CodeTooLong, "at most 256 are allowed"},
		{"٣ * * * *", task.CodeBadSchedule, "not ASCII"},
		{"*\u00a0* * * *", task.CodeBadSchedule, "not ASCII"},
		{"\xff * * * *", task.CodeBadSchedule, "not ASCII"},
		{"* * * * *\x00", task.CodeBadSchedule, "control character"},
		{"* * * * *\n", task.CodeBadSchedule, "control character"},
		{"* * * * *\r\n* * * * *", task.CodeBadSchedule, "control character"},
		{"\x1b[2J * * * *", task.CodeBadSchedule, "control character"},
		{"* * * * \x7f", task.CodeBadSchedule, "control character"},
		{"0\t2 * * *", task.CodeBadSchedule, "separate fields with spaces"},

		{"TZ=", task.CodeBadSchedule, "use the field timezone"},
		{"TZ=UTC", task.CodeBadSchedule, "use the field timezone"},
		{"TZ=UTC * * * * *", task.CodeBadSchedule, "use the field timezone"},
		{"CRON_TZ=", task.CodeBadSchedule, "use the field timezone"},
		{"CRON_TZ=Europe/Berlin 0 2 * * *", task.CodeBadSchedule, "use the field timezone"},
		{"tz=UTC * * * * *", task.CodeBadSchedule, "use the field timezone"},
		{"* * * * * TZ=UTC", task.CodeBadSchedule, "use the field timezone"},

		{"*", task.CodeBadSchedule, "has 1 field;"},
		{"* * * *", task.CodeBadSchedule, "has 4 fields;"},
		{"* * * * * * *", task.CodeBadSchedule, "has 7 fields; years are not supported"},
		{"* * * * * * * *", task.CodeBadSchedule, "has 8 fields;"},

		{", * * * *", task.CodeBadSchedule, "minute has an empty item"},
		{"1,,2 * * * *", task.CodeBadSchedule, "minute has an empty item"},
		{",1 * * * *", task.CodeBadSchedule, "minute has an empty item"},
		{"1, * * * *", task.CodeBadSchedule, "minute has an empty item"},
		{"*-5 * * * *", task.CodeBadSchedule, "cannot begin a range"},
		{"*-5/2 * * * *", task.CodeBadSchedule, "cannot begin a range"},
		{"5-1 * * * *", task.CodeBadSchedule, "minute 5-1 has its bounds in the wrong order; to wrap around, write 5-59,0-1"},
		{"0 22-2 * * *", task.CodeBadSchedule, "to wrap around, write 22-23,0-2"},
		{"0 0 * DEC-FEB *", task.CodeBadSchedule, "to wrap around, write 12,1-2"},
		{"0 0 * * fri-sun", task.CodeBadSchedule, "did you mean 5-7?"},
		{"0 0 * * 7-1", task.CodeBadSchedule, "has its bounds in the wrong order"},
		{"-5 * * * *", task.CodeBadSchedule, "a range requires two values"},
		{"5- * * * *", task.CodeBadSchedule, "a range requires two values"},
		{"- * * * *", task.CodeBadSchedule, "a range requires two values"},
		{"1-2-3 * * * *", task.CodeBadSchedule, `"2-3" is not a number`},
		{"*/0 * * * *", task.CodeBadSchedule, "minute step 0 is less than 1"},
		{"*/-1 * * * *", task.CodeBadSchedule, `the step "-1" is not a number`},
		{"*/ * * * *", task.CodeBadSchedule, `the step "" is not a number`},
		{"/5 * * * *", task.CodeBadSchedule, "a range requires two values"},
		{"1-9/2/3 * * * *", task.CodeBadSchedule, `the step "2/3" is not a number`},
		{"0/60 * * * *", task.CodeBadSchedule, "minute step 60 is greater than 59"},
		{"60/5 * * * *", task.CodeBadSchedule, "minute 60 is greater than 59"},
		{"5/ * * * *", task.CodeBadSchedule, `the step "" is not a number`},
		{"0 0 * * 1/8", task.CodeBadSchedule, "day of week step 8 is greater than 7"},
		{"** * * * *", task.CodeBadSchedule, `"**" is not a number`},
		{"+5 * * * *", task.CodeBadSchedule, `"+5" is not a number`},
		{"1.5 * * * *", task.CodeBadSchedule, `"1.5" is not a number`},
		{"0x10 * * * *", task.CodeBadSchedule, "is not a number"},
		{"60 * * * *", task.CodeBadSchedule, "minute 60 is greater than 59"},
		{"99999999999999999999 * * * *", task.CodeBadSchedule, "is greater than 59"},
		{"0-60 * * * *", task.CodeBadSchedule, "minute 60 is greater than 59"},
		{"60 * * * * *", task.CodeBadSchedule, "second 60 is greater than 59"},
		{"0 24 * * *", task.CodeBadSchedule, "hour 24 is greater than 23"},
		{"0 0 0 * *", task.CodeBadSchedule, "day of month 0 is less than 1"},
		{"0 0 32 * *", task.CodeBadSchedule, "day of month 32 is greater than 31"},
		{"0 0 1 0 *", task.CodeBadSchedule, "month 0 is less than 1"},
		{"0 0 1 13 *", task.CodeBadSchedule, "month 13 is greater than 12"},
		{"0 0 * * 8", task.CodeBadSchedule, "day of week 8 is greater than 7"},
		{"*/75 * * * *", task.CodeBadSchedule, `"*/75 * * * *": minute step 75 is greater than 59; did you mean "@every 75m"?`},
		{"*/90 * * * * *", task.CodeBadSchedule, `did you mean "@every 90s"?`},
		{"0 */36 * * *", task.CodeBadSchedule, `did you mean "@every 36h"?`},
		{"*/75 9-17 * * *", task.CodeBadSchedule, "minute step 75 is greater than 59"},
		{"0 0 */40 * *", task.CodeBadSchedule, "day of month step 40 is greater than 31"},
		{"0 0 * JANUARY *", task.CodeBadSchedule, `month JANUARY: "JANUARY" is neither a number nor a name from JAN to DEC`},
		{"0 0 * * MO", task.CodeBadSchedule, "nor a name from SUN to SAT"},
		{"0 0 MON * *", task.CodeBadSchedule, "is not a number"},

		{"? 0 * * *", task.CodeBadSchedule, `minute ?: ? is valid only for the day of month and the day of week; write a number, or * for all values`},
		{"0 0 * ? *", task.CodeBadSchedule, "month ?: ? is valid only for the day of month and the day of week; write a number, or * for all values; did you mean \"0 0 * * *\"?"},
		{"0 0 ?/2 * *", task.CodeBadSchedule, "day of month ?/2: ? must be the whole field; use * in a list or with a step"},
		{"0 0 * * MON,?", task.CodeBadSchedule, "day of week ?: ? must be the whole field"},
		{"0 0 L-3 * *", task.CodeBadSchedule, "day of month L-3: L (last day) and LW (last working day) cannot be combined with anything else"},
		{"0 0 L/2 * *", task.CodeBadSchedule, "cannot be combined with anything else"},
		{"0 0 LL * *", task.CodeBadSchedule, "cannot be combined with anything else"},
		{"0 0 W * *", task.CodeBadSchedule, "day of month W: W requires a day; did you mean 15W, or LW"},
		{"0 0 WL * *", task.CodeBadSchedule, `"WL" is not a number`},
		{"0 0 0W * *", task.CodeBadSchedule, "day of month 0 is less than 1"},
		{"0 0 32W * *", task.CodeBadSchedule, "day of month 32 is greater than 31"},
		{"0 0 1-5W * *", task.CodeBadSchedule, "day of month 1-5W: W takes one day, such as 15W"},
		{"0 0 15W/2 * *", task.CodeBadSchedule, "is not"},
		{"0 0 15L * *", task.CodeBadSchedule, "L in the day of month, 5L in the day of week"},
		{"0 0 5#3 * *", task.CodeBadSchedule, "day of month 5#3: # is valid only for the day of week: 5#3 is the third Friday"},
		{"0 0 L, * *", task.CodeBadSchedule, "empty item"},
		{"0 0 * L *", task.CodeBadSchedule, "month L: L (last) is valid only for days"},
		{"L 0 * * *", task.CodeBadSchedule, "minute L: L (last) is valid only for days"},
		{"5W 0 * * *", task.CodeBadSchedule, "minute 5W: W (working day) is valid only for the day of month"},
		{"0 0 * * L", task.CodeBadSchedule, "day of week L: L requires a day: 5L is the last Friday"},
		{"0 0 * * 8L", task.CodeBadSchedule, "day of week 8 is greater than 7"},
		{"0 0 * * 1-5L", task.CodeBadSchedule, `"1-5" is neither a number nor a name`},
		{"0 0 * * 5L/2", task.CodeBadSchedule, "is neither a number nor a name"},
		{"0 0 * * LW", task.CodeBadSchedule, "day of week LW: W (working day) is valid only for the day of month"},
		{"0 0 * * 5W", task.CodeBadSchedule, "day of week 5W: W (working day) is valid only for the day of month"},
		{"0 0 * * 5#0", task.CodeBadSchedule, "day of week 5#0: # requires a number from 1 to 5"},
		{"0 0 * * 5#6", task.CodeBadSchedule, "# requires a number from 1 to 5"},
		{"0 0 * * 5#L", task.CodeBadSchedule, "5L is the last one"},
		{"0 0 * * 5#", task.CodeBadSchedule, "# requires a number from 1 to 5"},
		{"0 0 * * #3", task.CodeBadSchedule, "day of week #3: # requires a day: MON#3 is the 3rd Monday"},
		{"0 0 * * 8#3", task.CodeBadSchedule, "day of week 8 is greater than 7"},
		{"0 0 * * FRIDAY#3", task.CodeBadSchedule, "nor a name from SUN to SAT"},
		{"0 0 * * 5#1#2", task.CodeBadSchedule, "# requires a number from 1 to 5"},
		{"0 0 * * *#2", task.CodeBadSchedule, "is neither a number nor a name"},
		{"0 0 31W 2,4 *", task.CodeNeverFires, "never fires"},
		{"H(5) * * * *", task.CodeBadSchedule, "minute H(5): use H, H(0-59), H/2 or H(0-59)/2"},
		{"H( * * * *", task.CodeBadSchedule, "use H, H("},
		{"H(1-2 * * * *", task.CodeBadSchedule, "use H, H("},
		{"H5 * * * *", task.CodeBadSchedule, "use H, H("},
		{"H-5 * * * *", task.CodeBadSchedule, "use H, H("},
		{"H(9-2) * * * *", task.CodeBadSchedule, "minute H(9-2) has its bounds in the wrong order; H takes one range, H(9-59) or H(0-2)"},
		{"0 0 H(29-5) * *", task.CodeBadSchedule, "day of month H(29-5) has its bounds in the wrong order; H takes one range, H(1-5)"},
		{"0 0 H(31-29) * *", task.CodeBadSchedule, "H takes one range, H(1-28)"},
		{"H(50-60) * * * *", task.CodeBadSchedule, "minute 60 is greater than 59"},
		{"0 0 H(20-31) * *", task.CodeBadSchedule, "day of month H(20-31) is greater than 28, the maximum for H"},
		{"0 0 * * H(0-7)", task.CodeBadSchedule, "greater than 6"},
		{"H/0 * * * *", task.CodeBadSchedule, "minute step 0 is less than 1"},
		{"H/60 * * * *", task.CodeBadSchedule, "minute step 60 is greater than 59"},
		{"5,H/ * * * *", task.CodeBadSchedule, `the step "" is not a number`},
		{"H,,5 * * * *", task.CodeBadSchedule, "empty item"},
		{"H H 30 2 *", task.CodeNeverFires, "never fires"},
		{"0 0 30 H *", task.CodeNeverFires, "never fires for some names: H may be a month without such a day"},
		{"0 0 31 4,H(1-12) *", task.CodeNeverFires, "never fires for some names"},
		{"H * * *", task.CodeBadSchedule, "has 4 fields"},
		{"H * * * *" + strings.Repeat(" ", 120), task.CodeTooLong, "is 129 bytes long; at most 128 are allowed with H"},

		{"0 0 30 2 *", task.CodeNeverFires, "never fires"},
		{"0 0 31 2,4,6,9,11 *", task.CodeNeverFires, "never fires"},
		{"0 0 31 APR */2", task.CodeNeverFires, "never fires"},

		{"@", task.CodeBadSchedule, "is not one of @yearly"},
		{"@fortnightly", task.CodeBadSchedule, "is not one of @yearly"},
		{"@Daily", task.CodeBadSchedule, `did you mean "@daily"?`},
		{"@MANUAL", task.CodeBadSchedule, `did you mean "@manual"?`},
		{"@Every 5m", task.CodeBadSchedule, `did you mean "@every"?`},
		{"@daily 5", task.CodeBadSchedule, "@daily takes no arguments"},
		{"@manual now", task.CodeBadSchedule, "@manual takes no arguments"},
		{"@reboot now", task.CodeBadSchedule, "@reboot takes no arguments"},
		{"@Reboot", task.CodeBadSchedule, `did you mean "@reboot"?`},
		{"@boot", task.CodeBadSchedule, `did you mean "@reboot"?`},
		{"@every", task.CodeBadDuration, "needs one duration"},
		{"@every 1h 30m", task.CodeBadDuration, "needs one duration"},
		{"@every90s", task.CodeBadSchedule, `did you mean "@every 90s"?`},
		{"@every soon", task.CodeBadDuration, "is not a duration"},
		{"@every 90", task.CodeBadDuration, "is not a duration"},
		{"@every -1h", task.CodeBadDuration, "negative"},
		{"@every 0s", task.CodeBadDuration, "at least 100ms"},
		{"@every 99ms", task.CodeBadDuration, "at least 100ms"},
		{"@every 100.5ms", task.CodeBadDuration, "whole number of milliseconds"},
		{"@every 87600h1ms", task.CodeBadDuration, "at most 87600h"},
		{"@every 99999999999h", task.CodeBadDuration, "is not a duration"},
		{"@every 1h after", task.CodeBadDuration, `did you mean "@every 1h after completion"?`},
		{"@every 1h After Completion", task.CodeBadDuration, `did you mean "@every 1h after completion"?`},
		{"@every 1h before completion", task.CodeBadDuration, "needs one duration"},
		{"@every after completion", task.CodeBadDuration, "needs one duration"},
		{"@every 1h after completion again", task.CodeBadDuration, "did you mean"},
		{"@every 50ms after completion", task.CodeBadDuration, "at least 100ms"},
		{"@in", task.CodeBadDuration, `such as "@in 10m"`},
		{"@in 10m 5s", task.CodeBadDuration, `such as "@in 10m"`},
		{"@in -1m", task.CodeBadDuration, "the wait is negative"},
		{"@in soon", task.CodeBadDuration, `"soon" is not a duration`},
		{"@In 10m", task.CodeBadSchedule, `did you mean "@in"?`},
		{"@at soon", task.CodeBadTime, "@at needs a time, such as"},
		{"@at", task.CodeBadTime, "@at needs a time, such as"},
		{"@at 2026-02-30T18:00:00Z", task.CodeBadTime, "@at needs a time, such as"},
		{"@at 2026-12-24T18:00:00,5Z", task.CodeBadTime, "@at needs a time, such as"},
		{"@at 2026-12-24T18:00:00+1:00", task.CodeBadTime, "@at needs a time, such as"},
		{"@at 2026-12-24T18:00:00+25:00", task.CodeBadTime, "@at needs a time, such as"},
		{"@at 2026-12-24T18:00:00.0001Z", task.CodeBadTime, "whole number of milliseconds"},
		{"@at 1999-12-31T23:59:59Z", task.CodeBadTime, "outside the years 2000 to 2100"},
		{"@at 2101-01-01T00:00:00Z", task.CodeBadTime, "outside the years 2000 to 2100"},
	} {
		err := schedule.Check(task.Timing{Schedule: []string{c.expr}, Timezone: "", DST: noDST})
		wantError(t, c.expr, err, c.code, "schedule", c.says)
		if _, parseErr := schedule.Parse(task.Timing{Schedule: []string{c.expr}, Timezone: "", DST: noDST}, anchor); parseErr == nil || err == nil || parseErr.Error() != err.Error() && !strings.ContainsAny(c.expr, "Hh") {
			t.Errorf("%q: Parse says %v, Check says %v", c.expr, parseErr, err)
		}
	}
}

func TestCheck_RefusesBadLists(t *testing.T) {
	ok := "0 0 * * *"
	seventeen := make([]string, 17)
	for i := range seventeen {
		seventeen[i] = ok
	}

	for _, c := range []struct {
		exprs             []string
		code, field, says string
	}{
		{nil, task.CodeRequired, "schedule", "a schedule is required"},
		{seventeen, task.CodeTooMany, "schedule", "has 17 expressions; at most 16 are allowed"},
		{[]string{ok, ""}, task.CodeRequired, "schedule[1]", "a schedule is required"},
		{[]string{"60 * * * *", ok}, task.CodeBadSchedule, "schedule[0]", "minute 60"},
		{[]string{ok, "0 0 30 2 *"}, task.CodeNeverFires, "schedule[1]", "never fires"},
		{[]string{ok, "@manual"}, task.CodeBadSchedule, "schedule[1]", "cannot be combined with others"},
		{[]string{ok, "@reboot"}, task.CodeBadSchedule, "schedule[1]", "cannot be combined with others"},
		{[]string{"@manual", "@manual"}, task.CodeBadSchedule, "schedule[0]", "cannot be combined with others"},
	} {
		wantError(t, strings.Join(c.exprs, "; "), schedule.Check(task.Timing{Schedule: c.exprs, Timezone: "", DST: noDST}), c.code, c.field, c.says)
	}
}

func TestCheck_RefusesBadZonesAndPolicies(t *testing.T) {
	for _, c := range []struct{ zone, says string }{
		{"Local", "differs from host to host"},
		{"local", "differs from host to host"},
		{"europe/berlin", `did you mean "Europe/Berlin"?`},
		{"EUROPE/BERLIN", `did you mean "Europe/Berlin"?`},
		{"utc", `did you mean "UTC"?`},
		{"../x", "is not a time zone"},
		{"Europe/../Europe/Berlin", "is not a time zone"},
		{"./UTC", "is not a time zone"},
		{"/usr/share/zoneinfo/UTC", "is not a time zone"},
		{"/etc/passwd", "is not a time zone"},
		{"Europe/", "is not a time zone"},
		{"Europe", "is not a time zone"},
		{"Europe/Berlin ", "is not a time zone"},
		{" ", "is not a time zone"},
		{"Europe/Atlantis", "is not a time zone"},
		{"UTC+2", "is not a time zone"},
		{"posixrules", "is not a time zone"},
		{"Europe/Berlin\x00", "is not a time zone"},
		{strings.Repeat("x", 10_000), "xxx…"},
	} {
		wantError(t, c.zone, schedule.Check(task.Timing{Schedule: []string{"@daily"}, Timezone: c.zone, DST: noDST}), task.CodeBadTimezone, "timezone", c.says)
		_, err := schedule.Location(c.zone)
		wantError(t, c.zone, err, task.CodeBadTimezone, "timezone", c.says)
	}

	wantError(t, "gap", schedule.Check(task.Timing{Schedule: []string{"@daily"}, Timezone: "", DST: task.DST{Gap: "Skip"}}), task.CodeBadValue, "dst.gap", `"Skip" is not one of run-after, skip; did you mean skip?`)
	wantError(t, "fold", schedule.Check(task.Timing{Schedule: []string{"@daily"}, Timezone: "", DST: task.DST{Fold: "last"}}), task.CodeBadValue, "dst.fold", `"last" is not one of first, both`)
}

func TestUpcoming_RefusesBadCounts(t *testing.T) {
	for _, n := range []int{-1, 0, schedule.MaxUpcoming + 1} {
		_, err := schedule.Upcoming(task.Timing{Schedule: []string{"@daily"}, Timezone: "", DST: noDST}, anchor, anchor, n)
		wantError(t, "count", err, task.CodeOutOfRange, "count", "is not between 1 and 10000")
	}

	_, err := schedule.Upcoming(task.Timing{Schedule: []string{"@daily", "x"}, Timezone: "", DST: noDST}, anchor, anchor, 1)
	wantError(t, "list", err, task.CodeBadSchedule, "schedule[1]", "has 1 field")
}

// An invalid text stays invalid when a similar valid schedule is in the cache.
func TestCheck_RefusesWhatResemblesAKnownSchedule(t *testing.T) {
	if err := schedule.Check(task.Timing{Schedule: []string{"1 1 * * *", "2 2 * * *"}, Timezone: "UTC", DST: noDST}); err != nil {
		t.Fatal(err)
	}

	for _, sep := range []string{"\n", "\x00", "\t", " ", "", "\x09"} {
		if schedule.Check(task.Timing{Schedule: []string{"1 1 * * *" + sep + "2 2 * * *"}, Timezone: "UTC", DST: noDST}) == nil {
			t.Errorf("two expressions joined by %q pass as one", sep)
		}
	}
}

func wantError(t *testing.T, input string, err error, code, field, says string) {
	t.Helper()
	var e *task.Error
	switch {
	case !errors.As(err, &e):
		t.Errorf("%q: got %v, want a *task.Error", input, err)
	case e.Code != code || e.Field != field || !strings.Contains(e.Message, says):
		t.Errorf("%q:\n got %s, field %s: %s\nwant %s, field %s: … %s …", input, e.Code, e.Field, e.Message, code, field, says)
	case len(e.Message) > 250:
		t.Errorf("%q: a message of %d bytes", input, len(e.Message))
	}
}
