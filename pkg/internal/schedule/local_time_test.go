package schedule_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestReadMoment_FindsInstantsGapsAndFolds(t *testing.T) {
	for _, c := range []struct{ text, zone, local, instants, change string }{
		{"2026-03-29 01:59:59", "Europe/Berlin", "2026-03-29 01:59:59", "2026-03-29T00:59:59Z", ""},
		{"2026-03-29 02:00", "Europe/Berlin", "2026-03-29 02:00:00", "", "2026-03-29T01:00:00Z 2026-03-29 02:00:00 > 2026-03-29 03:00:00 gap"},
		{"2026-03-29T02:30", "Europe/Berlin", "2026-03-29 02:30:00", "", "2026-03-29T01:00:00Z 2026-03-29 02:00:00 > 2026-03-29 03:00:00 gap"},
		{"2026-03-29 02:59:59.999", "Europe/Berlin", "2026-03-29 02:59:59.999", "", "2026-03-29T01:00:00Z 2026-03-29 02:00:00 > 2026-03-29 03:00:00 gap"},
		{"2026-03-29 03:00", "Europe/Berlin", "2026-03-29 03:00:00", "2026-03-29T01:00:00Z", ""},
		{"2026-10-25 01:59", "Europe/Berlin", "2026-10-25 01:59:00", "2026-10-24T23:59:00Z", ""},
		{"2026-10-25 02:00", "Europe/Berlin", "2026-10-25 02:00:00", "2026-10-25T00:00:00Z 2026-10-25T01:00:00Z", "2026-10-25T01:00:00Z 2026-10-25 03:00:00 > 2026-10-25 02:00:00 fold"},
		{"2026-10-25T02:30:00.250", "Europe/Berlin", "2026-10-25 02:30:00.250", "2026-10-25T00:30:00.25Z 2026-10-25T01:30:00.25Z", "2026-10-25T01:00:00Z 2026-10-25 03:00:00 > 2026-10-25 02:00:00 fold"},
		{"2026-10-25T02:30:00+01:00", "Europe/Berlin", "2026-10-25 02:30:00", "2026-10-25T01:30:00Z", "2026-10-25T01:00:00Z 2026-10-25 03:00:00 > 2026-10-25 02:00:00 fold"},
		{"2026-10-25 03:00", "Europe/Berlin", "2026-10-25 03:00:00", "2026-10-25T02:00:00Z", ""},
		{"2011-12-30", "Pacific/Apia", "2011-12-30 00:00:00", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z 2011-12-30 00:00:00 > 2011-12-31 00:00:00 gap"},
		{"2018-11-04", "America/Sao_Paulo", "2018-11-04 00:00:00", "2018-11-04T03:00:00Z", "2018-11-04T03:00:00Z 2018-11-04 00:00:00 > 2018-11-04 01:00:00 gap"},
		{"2026-10-04 02:15", "Australia/Lord_Howe", "2026-10-04 02:15:00", "", "2026-10-03T15:30:00Z 2026-10-04 02:00:00 > 2026-10-04 02:30:00 gap"},
		{"2026-07-01 12:00", "", "2026-07-01 12:00:00", "2026-07-01T12:00:00Z", ""},
	} {
		m, err := schedule.ReadMoment(c.text, schedule.TimeBase{Zone: zoneOf(t, c.zone)})
		if err != nil {
			t.Fatal(err)
		}

		var instants []string
		for _, at := range m.Instants {
			instants = append(instants, at.Format(time.RFC3339Nano))
		}

		if got := strings.Join(instants, " "); m.Local != c.local || got != c.instants || changeText(m.Change) != c.change {
			t.Errorf("%s in %s: %s: %q, %s", c.text, c.zone, m.Local, got, changeText(m.Change))
		}
	}
}

func changeText(c *schedule.Change) string {
	switch {
	case c == nil:
		return ""
	case isGap(c):
		return c.At.Format(time.RFC3339) + " " + c.From + " > " + c.To + " gap"
	}

	return c.At.Format(time.RFC3339) + " " + c.From + " > " + c.To + " fold"
}

func TestReadMoment_RefusesWhatIsNotATime(t *testing.T) {
	now := instantOf(t, "2026-11-27 12:34")
	for _, text := range []string{
		"", " ", "soon", "2026-02-30", "2026-2-3", "2026-03-29 24:00", "2026-03-29TT02:30", "2026-03-29 02:60", "02:30:60", "9", "18", "18h30", "-2h", "+2h", "2h ago ago", "in", "ago", "in 2h ago",
		"yesterday tomorrow", "Mon yesterday 18:00", "Mon", "18:00 yesterday", "2026-03-29Z", "2026-03-29T02:30:00,5", "2026-03-29T02:30+1", "2026-03-29 02:30+25:00", "18:00 Europe/Berlin",
		"31 Nov 18:00", "24 Dec 26", "Dec 24", "2026-12-24 18:00 UTC UTC", "18:00Z UTC", strings.Repeat("1", 100),
	} {
		_, err := schedule.ReadMoment(text, schedule.TimeBase{Now: now, Zone: zoneOf(t, "Europe/Berlin")})
		wantError(t, text, err, task.CodeBadTime, "", "is not a time")
	}

	for _, text := range []string{"1999-12-31", "2101-01-01", "1999-12-31T00:00:00Z", "in 5000w"} {
		_, err := schedule.ReadMoment(text, schedule.TimeBase{Now: now})
		wantError(t, text, err, task.CodeBadTime, "", "is not in the years 2000 to 2100")
	}

	for _, c := range []struct{ text, part string }{
		{"soon", "18:00, yesterday 18:00, 2026-12-24 18:00 (in Europe/Berlin) or 2026-12-24T18:00:00Z"},
		{"10 mins ago", `did you mean "10m"?`},
		{"Tue 27 Nov 2026 18:00", "27 November 2026 is a Friday"},
		{"18:00 EST", `the clock in Europe/Berlin is not called "EST" then; write an offset`},
		{"2026-07-01 18:00 CET", `the clock in Europe/Berlin is not called "CET" then`},
	} {
		_, err := schedule.ReadMoment(c.text, schedule.TimeBase{Now: now, Zone: zoneOf(t, "Europe/Berlin")})
		wantError(t, c.text, err, task.CodeBadTime, "", c.part)
	}
}

// A file means the same whenever it is read.
func TestReadMoment_WithoutNowRefusesWhatDependsOnIt(t *testing.T) {
	for _, text := range []string{"now", "2h", "2h ago", "18:00", "tomorrow", "tomorrow 6:00", "Mon 6:00", "24 Dec", "24 Dec 18:00"} {
		_, err := schedule.ReadMoment(text, schedule.TimeBase{})
		wantError(t, text, err, task.CodeBadTime, "", "depends on when it is read")
	}
	for _, text := range []string{"2026-12-24", "2026-12-24 18:00", "Thu 24 Dec 2026 18:00", "2026-12-24T18:00:00Z"} {
		if _, err := schedule.ReadMoment(text, schedule.TimeBase{}); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A text without a date means the last time, the next time, or that of today.
func TestReadMoment_DirectionDecides(t *testing.T) {
	now := instantOf(t, "2026-11-27 12:34:56") // a Friday, 13:34:56 in Berlin
	for _, c := range []struct{ text, past, nearest, future string }{
		{"now", "2026-11-27T12:34:56Z", "=", "="},
		{"90s", "2026-11-27T12:33:26Z", "2026-11-27T12:36:26Z", "2026-11-27T12:36:26Z"},
		{"2d12h", "2026-11-25T00:34:56Z", "2026-11-30T00:34:56Z", "2026-11-30T00:34:56Z"},
		{"2d 12h", "2026-11-25T00:34:56Z", "2026-11-30T00:34:56Z", "2026-11-30T00:34:56Z"},
		{"1w", "2026-11-20T12:34:56Z", "2026-12-04T12:34:56Z", "2026-12-04T12:34:56Z"},
		{"2h ago", "2026-11-27T10:34:56Z", "=", "="},
		{"3h 18m ago", "2026-11-27T09:16:56Z", "=", "="},
		{"in 2h", "2026-11-27T14:34:56Z", "=", "="},
		{"18:00", "2026-11-26T17:00:00Z", "2026-11-27T17:00:00Z", "2026-11-27T17:00:00Z"},
		{"6:00", "2026-11-27T05:00:00Z", "2026-11-27T05:00:00Z", "2026-11-28T05:00:00Z"},
		{"13:34:56", "2026-11-27T12:34:56Z", "2026-11-27T12:34:56Z", "2026-11-28T12:34:56Z"},
		{"23:30 UTC", "2026-11-26T23:30:00Z", "2026-11-27T23:30:00Z", "2026-11-27T23:30:00Z"},
		{"18:00+05:30", "2026-11-27T12:30:00Z", "2026-11-27T12:30:00Z", "2026-11-28T12:30:00Z"},
		{"18:00 CET", "2026-11-26T17:00:00Z", "2026-11-27T17:00:00Z", "2026-11-27T17:00:00Z"},
		{"yesterday", "2026-11-25T23:00:00Z", "=", "="},
		{"yesterday 18:00", "2026-11-26T17:00:00Z", "=", "="},
		{"today 6:00", "2026-11-27T05:00:00Z", "=", "="},
		{"Tomorrow 06:00:30", "2026-11-28T05:00:30Z", "=", "="},
		{"Fri 13:00", "2026-11-27T12:00:00Z", "2026-11-27T12:00:00Z", "2026-12-04T12:00:00Z"},
		{"Thu 14:00", "2026-11-26T13:00:00Z", "2026-11-26T13:00:00Z", "2026-12-03T13:00:00Z"},
		{"thursday 6:00", "2026-11-26T05:00:00Z", "2026-12-03T05:00:00Z", "2026-12-03T05:00:00Z"},
		{"Sat 02:30 CET", "2026-11-21T01:30:00Z", "2026-11-28T01:30:00Z", "2026-11-28T01:30:00Z"},
		{"24 Dec", "2026-12-23T23:00:00Z", "=", "="},
		{"Thu 24 Dec 18:00 CET", "2026-12-24T17:00:00Z", "=", "="},
		{"Thu 24 Dec 2026 18:00", "2026-12-24T17:00:00Z", "=", "="},
		{"Thu 2026-12-24 18:00:00 CET", "2026-12-24T17:00:00Z", "=", "="},
		{"2026-12-24T18:00:00.250Z", "2026-12-24T18:00:00.25Z", "=", "="},
		{"2026-12-24 18:00Z", "2026-12-24T18:00:00Z", "=", "="},
		{"2026-12-24 18:00 -03", "2026-12-24T21:00:00Z", "=", "="},
	} {
		wants := []string{c.nearest, c.past, c.future}
		for direction, want := range wants {
			if want == "=" {
				want = c.past
			}
			at, err := schedule.ReadInstant(c.text, schedule.TimeBase{Now: now, Zone: zoneOf(t, "Europe/Berlin"), Direction: schedule.Direction(direction)})
			if got := at.Format(time.RFC3339Nano); err != nil || got != want {
				t.Errorf("%q, direction %d: %s, %v; want %s", c.text, direction, got, err, want)
			}
		}
	}
}

// Where clocks change, one instant is meant or the error says what to write. A day begins when its first instant does.
func TestReadInstant_GapsAndFolds(t *testing.T) {
	for _, c := range []struct{ text, zone, want string }{
		{"2026-03-29 02:30", "Europe/Berlin", `"2026-03-29 02:30" does not exist in Europe/Berlin: the clocks go from 02:00 to 03:00 then`},
		{"2026-03-29 02:30+01:00", "Europe/Berlin", "2026-03-29T01:30:00Z"},
		{"2026-10-25 02:30", "Europe/Berlin", `"2026-10-25 02:30" exists twice in Europe/Berlin: write 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00`},
		{"2026-10-25 02:30 CEST", "Europe/Berlin", "2026-10-25T00:30:00Z"},
		{"2026-10-25 02:30 CET", "Europe/Berlin", "2026-10-25T01:30:00Z"},
		{"2026-10-25T02:30:00+01:00", "Europe/Berlin", "2026-10-25T01:30:00Z"},
		{"2026-09-06", "America/Santiago", "2026-09-06T04:00:00Z"}, // midnight does not exist
		{"2026-04-05", "America/Havana", "2026-04-05T04:00:00Z"},
		{"2026-11-01", "America/Havana", "2026-11-01T04:00:00Z"}, // from 01:00 to 00:00: midnight exists twice
	} {
		at, err := schedule.ReadInstant(c.text, schedule.TimeBase{Zone: zoneOf(t, c.zone)})
		got := at.Format(time.RFC3339)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s in %s: %s; want %s", c.text, c.zone, got, c.want)
		}
	}
}

func zoneOf(t testing.TB, name string) *time.Location {
	t.Helper()
	zone, err := schedule.Location(name)
	if err != nil {
		t.Fatal(err)
	}

	return zone
}

// The local time of each instant has that instant, and no other local time has it.
func TestReadMoment_IsTheWayBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := zoneGen.Draw(t, "zone")
		at := nearChangeSince(t, zone, 2000)

		location, err := schedule.Location(zone)
		if err != nil {
			t.Fatal(err)
		}

		text := at.In(location).Format("2006-01-02 15:04:05")
		m, err := schedule.ReadMoment(text, schedule.TimeBase{Zone: location})
		if err != nil {
			t.Fatal(err)
		}

		found := 0
		for _, instant := range m.Instants {
			if instant.In(location).Format("2006-01-02 15:04:05") != text {
				t.Fatalf("%s has the instant %v", text, instant)
			}

			if instant.Equal(at) {
				found++
			}
		}

		if found != 1 || m.Local != text || (len(m.Instants) == 2) != (m.Change != nil) {
			t.Fatalf("%s, which %v is, has %v, change %v", text, at, m.Instants, m.Change)
		}
	})
}

func TestAt_TellsWhatTheScheduleSays(t *testing.T) {
	skip, both := task.DST{Gap: task.GapSkip}, task.DST{Fold: task.FoldBoth}
	for _, c := range []struct {
		expr, at       string
		dst            task.DST
		tick           bool
		note, previous string
		next, change   string
	}{
		{"30 2 * * *", "2026-03-28T01:30:00Z", noDST, true, "", "2026-03-27T01:30:00Z", "2026-03-29T01:00:00Z", ""},
		{"30 2 * * *", "2026-03-29T01:00:00Z", noDST, true, "gap", "2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z", "gap"},
		{"30 2 * * *", "2026-03-29T01:00:00Z", skip, false, "", "2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z", "gap"},
		{"30 2 * * *", "2026-03-29T01:00:00.001Z", noDST, false, "", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z", ""},
		{"30 2 * * *", "2026-03-29T00:59:59.999Z", noDST, false, "", "2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", ""},
		{"30 2 * * *", "2026-10-25T00:30:00Z", noDST, true, "fold", "2026-10-24T00:30:00Z", "2026-10-26T01:30:00Z", "fold"},
		{"30 2 * * *", "2026-10-25T01:30:00Z", noDST, false, "", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z", "fold"},
		{"30 2 * * *", "2026-10-25T01:30:00Z", both, true, "fold", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z", "fold"},
		{"@at 2026-10-25T01:30:00Z", "2026-10-25T01:30:00Z", both, true, "", "", "", "fold"},
		{"@manual", "2026-10-25T01:30:00Z", both, false, "", "", "", "fold"},
	} {
		r := parse(t, "Europe/Berlin", c.dst, c.expr).At(instantOf(t, c.at))
		change := ""
		if r.Change != nil {
			change = map[bool]string{true: "gap", false: "fold"}[isGap(r.Change)]
		}

		if r.Tick != c.tick || r.Note != c.note || timeText(r.Previous) != c.previous || timeText(r.Next) != c.next || change != c.change {
			t.Errorf("%q at %s: %+v", c.expr, c.at, r)
		}
	}

	for _, far := range []time.Time{{}, time.UnixMilli(-1), time.Unix(1<<60, 0)} {
		if r := parse(t, "Europe/Berlin", noDST, "@daily").At(far); r.Tick || r.Change != nil || r.Next.IsZero() == r.Previous.IsZero() {
			t.Errorf("at %v: %+v", far, r)
		}
	}
}

func timeText(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.Format(time.RFC3339Nano)
}

// At agrees with Next about everything near a tick.
func TestAt_AgreesWithNext(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := zoneGen.Draw(t, "zone")
		s := mustParse(t, task.Timing{Schedule: anyGen().Draw(t, "exprs"), Timezone: zone, DST: dstGen.Draw(t, "dst")}, nearChange(t, zone))

		a, ok := s.Next(nearChange(t, zone))
		if !ok {
			return
		}

		b, ok := s.Next(a)
		if !ok {
			return
		}

		between := a.Add(time.Duration(rapid.Int64Range(0, b.Sub(a).Milliseconds()).Draw(t, "ms")) * time.Millisecond)
		switch r := s.At(between); {
		case between.Equal(a):
			if !r.Tick || !r.Next.Equal(b) {
				t.Fatalf("at %v: %+v", between, r)
			}
		case between.Equal(b):
			if !r.Tick || !r.Previous.Equal(a) {
				t.Fatalf("at %v: %+v", between, r)
			}
		case r.Tick || !r.Previous.Equal(a) || !r.Next.Equal(b):
			t.Fatalf("at %v, between %v and %v: %+v", between, a, b, r)
		}
	})
}

// isGap reports whether a change puts the clock forward.
func isGap(c *schedule.Change) bool { return c.From < c.To }
