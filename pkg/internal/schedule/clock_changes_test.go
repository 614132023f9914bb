package schedule_test

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// The clock changes at which Next is compared with the oracle.
var changes = []struct {
	zone, at, what string
	still          bool // nothing changes
}{
	{"Europe/Berlin", "2026-03-29T01:00:00Z", "02:00 to 03:00", false},
	{"Europe/Berlin", "2026-10-25T01:00:00Z", "03:00 to 02:00", false},
	{"America/New_York", "2026-03-08T07:00:00Z", "02:00 to 03:00", false},
	{"America/New_York", "2026-11-01T06:00:00Z", "02:00 to 01:00", false},
	{"Australia/Lord_Howe", "2026-10-03T15:30:00Z", "half an hour forward", false},
	{"Australia/Lord_Howe", "2026-04-04T15:00:00Z", "half an hour back", false},
	{"Europe/Dublin", "2026-03-29T01:00:00Z", "negative DST ends", false},
	{"Europe/Dublin", "2026-10-25T01:00:00Z", "negative DST begins", false},
	{"America/Sao_Paulo", "2018-11-04T03:00:00Z", "a day without midnight", false},
	{"America/Sao_Paulo", "2018-02-18T02:00:00Z", "midnight to 23:00 of the day before", false},
	{"Asia/Beirut", "2026-03-28T22:00:00Z", "a day without midnight", false},
	{"Asia/Beirut", "2026-10-24T21:00:00Z", "midnight to 23:00 of the day before", false},
	{"Antarctica/Troll", "2026-03-29T01:00:00Z", "two hours forward", false},
	{"Antarctica/Troll", "2026-10-25T01:00:00Z", "two hours back", false},
	{"Antarctica/Casey", "2010-03-04T15:00:00Z", "three hours back", false},
	{"Pacific/Apia", "2011-12-30T10:00:00Z", "a day that does not exist", false},
	{"Asia/Pyongyang", "2018-05-04T15:00:00Z", "half an hour forward, for good", false},
	{"America/Caracas", "2007-12-09T07:00:00Z", "half an hour back, for good", false},
	{"Africa/Casablanca", "2026-02-15T02:00:00Z", "back for Ramadan", false},
	{"Asia/Gaza", "2040-10-26T23:00:00Z", "two changes in a week", false},
	{"Pacific/Chatham", "2026-09-26T14:00:00Z", "02:45 to 03:45", false},
	{"Europe/Berlin", "2096-03-25T01:00:00Z", "seventy years ahead", false},
	{"Europe/Berlin", "2096-12-31T12:00:00Z", "the last day of a leap year", true},
	{"UTC", "2028-02-29T12:00:00Z", "nothing", true},
}

var policies = []task.DST{
	{},
	{Gap: task.GapSkip},
	{Fold: task.FoldBoth},
	{Gap: task.GapSkip, Fold: task.FoldBoth},
}

func TestNext_AgreesWithOracleWhereClocksChange(t *testing.T) {
	lists := [][]string{
		{"30 2 * * *"}, {"0 2 * * *"}, {"0 3 * * *"}, {"0 0 * * *"}, {"30 0 * * *"}, {"15 1 * * *"}, {"45 23 * * *"},
		{"* * * * *"}, {"*/20 * * * *"}, {"*/15 0-4 * * *"}, {"0 */2 * * *"}, {"0 0-23 * * *"}, {"5,35 1,2,3 * * *"},
		{"30 2 * * sun"}, {"0 0 */2 * 0,6"}, {"10 2 29,30 * 7"}, {"59 1 * mar-NOV *"}, {"0 12 1-7 * mon"},
		{"30 2 * * *", "0 3 * * *"}, {"*/30 * * * *", "45 2 * * *", "0 3 * * 0"}, {"15 */1 * * *", "15 2 * * *"},
	}

	for _, c := range changes {
		location, err := schedule.Location(c.zone)
		if err != nil {
			t.Fatal(err)
		}

		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}

		if _, end := at.Add(-time.Minute).In(location).ZoneBounds(); !end.Equal(at) && !c.still {
			t.Errorf("%s: no change at %s", c.zone, c.at)
		}

		from, upTo := at.Add(-26*time.Hour), at.Add(26*time.Hour)
		w := newWindow(location, from, upTo, time.Minute)

		for i, exprs := range lists {
			dst := policies[i%len(policies)]
			both := []task.DST{dst, policies[(i/len(policies)+i+1)%len(policies)]}
			if testing.Short() {
				both = both[:1]
			}

			for _, dst := range both {
				same(t, c.zone+": "+c.what, exprs, c.zone, dst, from, upTo, w.ticks(exprs, dst))
			}
		}
	}
}

func TestNext_AgreesWithOracleToTheSecond(t *testing.T) {
	for _, c := range []struct{ zone, at, expr string }{
		{"Europe/Berlin", "2026-03-29T01:00:00Z", "*/7 30-59/9 1-3 * * *"},
		{"Europe/Berlin", "2026-10-25T01:00:00Z", "1,59 */30 2 * * *"},
		{"Europe/Berlin", "2026-10-25T01:00:00Z", "58-59 59 */1 * * *"},
		{"Australia/Lord_Howe", "2026-04-04T15:00:00Z", "30 29-31 1,2 * * *"},
	} {
		location, _ := schedule.Location(c.zone)
		at, _ := time.Parse(time.RFC3339, c.at)
		from, upTo := at.Add(-2*time.Hour), at.Add(2*time.Hour)
		dst := task.DST{Fold: task.FoldBoth}
		same(t, c.zone, []string{c.expr}, c.zone, dst, from, upTo, newWindow(location, from, upTo, time.Second).ticks([]string{c.expr}, dst))
	}
}
