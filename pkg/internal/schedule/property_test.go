package schedule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

var zoneGen = rapid.SampledFrom([]string{
	"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Europe/Dublin", "America/Sao_Paulo", "Asia/Beirut",
	"Antarctica/Troll", "Antarctica/Casey", "Pacific/Apia", "Pacific/Fakaofo", "Africa/Casablanca", "Asia/Kathmandu",
	"America/St_Johns", "Asia/Tehran", "Africa/Cairo", "America/Havana", "America/Santiago", "Pacific/Chatham", "Asia/Gaza",
})

var dstGen = rapid.SampledFrom(policies)

// fieldGen generates a field of numbers, ranges, steps, lists and stars.
func fieldGen(low, high int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		var items []string
		for range rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "items") {
			a, b := rapid.IntRange(low, high).Draw(t, "a"), rapid.IntRange(low, high).Draw(t, "b")
			a, b = min(a, b), max(a, b)
			step := rapid.IntRange(1, high).Draw(t, "step")
			items = append(items, rapid.SampledFrom([]string{
				"*", fmt.Sprint(a), fmt.Sprint(b), fmt.Sprintf("%d-%d", a, b), fmt.Sprintf("%d-%d/%d", a, b, step), fmt.Sprintf("*/%d", step), fmt.Sprintf("%d/%d", a, step),
			}).Draw(t, "item"))
		}

		return strings.Join(items, ",")
	})
}

// dayGen generates a day of the month, some of them by their place.
var dayGen = rapid.Custom(func(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", "1,", "10-20/3,"}).Draw(t, "first") +
		rapid.SampledFrom([]string{"L", "l", "LW", "1W", "lW,15w", "L,LW", fmt.Sprintf("%dW", rapid.IntRange(1, 31).Draw(t, "day"))}).Draw(t, "place")
})

// weekdayGen generates a day of the week, some of them by their place in the month.
var weekdayGen = rapid.Custom(func(t *rapid.T) string {
	day := rapid.SampledFrom([]string{"0", "1", "5", "6", "7", "sun", "SAT", "Wed"}).Draw(t, "day")
	return rapid.SampledFrom([]string{"", "1,", "*/2,", "mon-FRI/2,"}).Draw(t, "first") +
		rapid.SampledFrom([]string{day + "L", day + "l", fmt.Sprintf("%s#%d", day, rapid.IntRange(1, 5).Draw(t, "n")), day + "#1," + day + "L"}).Draw(t, "place")
})

// cronGen generates a cron expression that has ticks, with seconds or without.
func cronGen(seconds bool) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		var words []string
		if seconds {
			words = append(words, fieldGen(0, 59).Draw(t, "second"))
		}

		words = append(words, fieldGen(0, 59).Draw(t, "minute"), fieldGen(0, 23).Draw(t, "hour"))
		star := rapid.SampledFrom([]string{"*", "*", "?"})
		words = append(words,
			rapid.OneOf(star, fieldGen(1, 31), dayGen).Draw(t, "day"),
			rapid.OneOf(rapid.Just("*"), rapid.Just("*"), fieldGen(1, 12)).Draw(t, "month"),
			rapid.OneOf(star, fieldGen(0, 7), weekdayGen).Draw(t, "weekday"))

		return strings.Join(words, " ")
	}).Filter(func(expr string) bool {
		return schedule.Check(task.Timing{Schedule: []string{expr}, Timezone: "", DST: noDST}) == nil
	})
}

// nearChange draws an instant within a day of a clock change, if the zone has one after a random instant, and
// otherwise that instant.
func nearChange(t *rapid.T, zone string) time.Time { return nearChangeSince(t, zone, 1970) }

func nearChangeSince(t *rapid.T, zone string, year int) time.Time {
	location, err := schedule.Location(zone)
	if err != nil {
		t.Fatal(err)
	}

	first := time.Date(year, 1, 4, 0, 0, 0, 0, time.UTC).Unix()
	random := time.Unix(rapid.Int64Range(first, 4_102_444_800).Draw(t, "instant"), 0).UTC()
	if _, change := random.In(location).ZoneBounds(); !change.IsZero() && change.Year() <= 2099 {
		random = change.UTC()
	}

	return random.Add(time.Duration(rapid.Int64Range(-86_400, 86_400).Draw(t, "off")) * time.Second)
}

func TestNext_AgreesWithOracleOnAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone, dst := zoneGen.Draw(t, "zone"), dstGen.Draw(t, "dst")
		exprs := rapid.SliceOfN(cronGen(false), 1, 3).Draw(t, "exprs")
		after := nearChange(t, zone)
		upTo := after.Add(time.Duration(rapid.IntRange(0, 12*60).Draw(t, "minutes")) * time.Minute)

		location, err := schedule.Location(zone)
		if err != nil {
			t.Fatal(err)
		}

		s, err := schedule.Parse(task.Timing{Schedule: exprs, Timezone: zone, DST: dst}, anchor)
		if err != nil {
			t.Fatal(err)
		}

		want := newWindow(location, after, upTo, time.Minute).ticks(exprs, dst)
		if got := walk(t, s, after, upTo); !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Fatalf("from %v\n got %v\nwant %v", after, got, want)
		}
	})
}

// anyGen generates a list of expressions of all kinds.
func anyGen() *rapid.Generator[[]string] {
	one := rapid.OneOf(cronGen(false), cronGen(true),
		rapid.Custom(func(t *rapid.T) string {
			unit := rapid.SampledFrom([]string{"00ms", "50ms", "s", "m", "h"}).Draw(t, "unit")
			return fmt.Sprintf("@every %d%s", rapid.IntRange(2, 100).Draw(t, "n"), unit)
		}),
		rapid.Custom(func(t *rapid.T) string {
			at := time.UnixMilli(rapid.Int64Range(1_700_000_000_000, 1_900_000_000_000).Draw(t, "at")).UTC()
			return "@at " + at.Format("2006-01-02T15:04:05.999Z07:00")
		}))

	return rapid.SliceOfN(one, 1, 4)
}

func TestNext_IsLaterAndMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := zoneGen.Draw(t, "zone")
		s, err := schedule.Parse(task.Timing{Schedule: anyGen().Draw(t, "exprs"), Timezone: zone, DST: dstGen.Draw(t, "dst")}, nearChange(t, zone))
		if err != nil {
			t.Fatal(err)
		}

		a := nearChange(t, zone).Add(time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "ns")))
		next, ok := s.Next(a)
		if !ok {
			return
		}

		if !next.After(a) || next.Nanosecond()%1e6 != 0 || next.Location() != time.UTC {
			t.Fatalf("Next(%v) = %v", a, next)
		}

		// Every instant between two ticks has the same next tick, because no tick lies between them.
		b := a.Add(time.Duration(rapid.Int64Range(0, int64(next.Sub(a))-1).Draw(t, "between")))
		if again, _ := s.Next(b); !again.Equal(next) {
			t.Fatalf("Next(%v) = %v, but Next(%v) = %v", a, next, b, again)
		}

		if later, ok := s.Next(next); ok && !later.After(next) {
			t.Fatalf("Next(%v) = %v", next, later)
		}
	})
}

func TestMissed_AgreesWithWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := zoneGen.Draw(t, "zone")
		s, err := schedule.Parse(task.Timing{Schedule: anyGen().Draw(t, "exprs"), Timezone: zone, DST: dstGen.Draw(t, "dst")}, nearChange(t, zone))
		if err != nil {
			t.Fatal(err)
		}

		after := nearChange(t, zone)
		upTo := after
		var want []time.Time
		for len(want) < 300 {
			next, ok := s.Next(upTo)
			if !ok {
				break
			}

			upTo = next
			want = append(want, next)
		}

		sameMissed(t, s, after, upTo, want)
	})
}

// Covers many days, because whole days are counted at once.
func TestMissed_AgreesWithWalkOverMonths(t *testing.T) {
	for _, c := range []struct {
		zone  string
		dst   task.DST
		exprs []string
	}{
		{"Europe/Berlin", noDST, []string{"*/20 1-3 * * *", "0 * * * 0", "@every 35m"}},
		{"Europe/Berlin", task.DST{Fold: task.FoldBoth}, []string{"0 2,3 1-10 * 1", "0 */2 * * *"}},
		{"Australia/Lord_Howe", noDST, []string{"15 1-2 * * *", "*/15 * * 4 *", "@every 90m", "@every 1h"}},
		{"Pacific/Apia", noDST, []string{"0 */3 * * *", "30 12 * * *", "@every 7001s"}},
		{"America/Sao_Paulo", noDST, []string{"0 0 * * *", "30 23 * * *", "@every 30h"}},
		{"Africa/Casablanca", noDST, []string{"0 2,3 * * *", "@every 1h", "@at 2018-03-25T01:00:00Z"}},
	} {
		year := map[string]int{"Pacific/Apia": 2011, "America/Sao_Paulo": 2018, "Africa/Casablanca": 2018}[c.zone]
		if year == 0 {
			year = 2026
		}

		start := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		end := start.AddDate(1, 1, 0)

		creations := []time.Time{start.AddDate(0, 2, 3).Add(7 * time.Hour), start.AddDate(0, 0, -3)}
		if testing.Short() {
			creations = creations[:1]
		}

		for _, created := range creations {
			s, err := schedule.Parse(task.Timing{Schedule: c.exprs, Timezone: c.zone, DST: c.dst}, created)
			if err != nil {
				t.Fatal(err)
			}
			sameMissed(t, s, start, end, walk(t, s, start, end))
		}
	}
}
