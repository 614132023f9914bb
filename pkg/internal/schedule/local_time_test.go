package schedule_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestReadLocal_FindsInstantsGapsAndFolds(t *testing.T) {
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
		{"2011-12-30", "Pacific/Apia", "2011-12-30 00:00:00", "", "2011-12-30T10:00:00Z 2011-12-30 00:00:00 > 2011-12-31 00:00:00 gap"},
		{"2018-11-04", "America/Sao_Paulo", "2018-11-04 00:00:00", "", "2018-11-04T03:00:00Z 2018-11-04 00:00:00 > 2018-11-04 01:00:00 gap"},
		{"2026-10-04 02:15", "Australia/Lord_Howe", "2026-10-04 02:15:00", "", "2026-10-03T15:30:00Z 2026-10-04 02:00:00 > 2026-10-04 02:30:00 gap"},
		{"2026-07-01 12:00", "", "2026-07-01 12:00:00", "2026-07-01T12:00:00Z", ""},
	} {
		m, err := schedule.ReadLocal(c.text, c.zone)
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

func TestReadLocal_RefusesWhatIsNotATime(t *testing.T) {
	for _, text := range []string{"", "tomorrow", "2026-02-30", "2026-03-29 2:30", "2026-03-29 02:30:00.5", "2026-03-29  02:30", "02:30", "2026-03-29 24:00", "2026-03-29 02:30 Z", "2026-03-29TT02:30"} {
		_, err := schedule.ReadLocal(text, "Europe/Berlin")
		wantError(t, text, err, task.CodeBadTime, "at", "is not a time")
	}

	for _, text := range []string{"1999-12-31", "2101-01-01", "1999-12-31T00:00:00Z"} {
		_, err := schedule.ReadLocal(text, "")
		wantError(t, text, err, task.CodeBadTime, "at", "is not in the years 2000 to 2100")
	}

	_, err := schedule.ReadLocal("2026-03-29", "europe/berlin")
	wantError(t, "zone", err, task.CodeBadTimezone, "timezone", "did you mean")
}

// The local time of each instant has that instant, and no other local time has it.
func TestReadLocal_IsTheWayBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := zoneGen.Draw(t, "zone")
		at := nearChangeSince(t, zone, 2000)

		location, err := schedule.Location(zone)
		if err != nil {
			t.Fatal(err)
		}

		text := at.In(location).Format("2006-01-02 15:04:05")
		m, err := schedule.ReadLocal(text, zone)
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
