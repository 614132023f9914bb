package schedule_test

import (
	"archive/zip"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/task"
)

// With -everything (make oracle), every expression is compared at every clock change of every zone, which takes
// minutes. Otherwise one change in eight, and some of the expressions at each.
var everything = flag.Bool("everything", false, "hold Next against the oracle everywhere")

// transition is an instant at which the offset of a zone changes.
type transition struct {
	zone          string
	at            time.Time
	before, after int // offsets in seconds
}

// transitionsOf finds the changes of a zone's offset from 1970 to 2040 by reading its clock every six hours (or
// every day).
func transitionsOf(zone string, location *time.Location) []transition {
	offset := func(at time.Time) int {
		_, seconds := at.In(location).Zone()
		return seconds
	}

	step := 24 * time.Hour
	if *everything {
		step = 6 * time.Hour
	}

	var list []transition
	last := time.Date(2041, 1, 1, 0, 0, 0, 0, time.UTC)
	now := time.Date(1970, 1, 2, 12, 0, 0, 0, time.UTC)
	for is := offset(now); now.Before(last); now = now.Add(step) {
		was := is
		if is = offset(now); is == was {
			continue
		}

		at := now // the first instant of the new offset
		for cut := step / 2; cut > 0; cut = max(cut/2, time.Second) {
			if offset(at.Add(-cut)) == is {
				at = at.Add(-cut)
			} else if cut == time.Second {
				break
			}

			cut = cut.Truncate(time.Second)
		}

		list = append(list, transition{zone, at, was, is})
	}

	return list
}

// allZones returns the names of all zones in the database, from its file.
func allZones(t testing.TB) []string {
	t.Helper()
	r, err := zip.OpenReader("zoneinfo.zip")
	if err != nil {
		t.Fatal(err)
	}

	defer r.Close()

	var names []string
	for _, f := range r.File {
		if !strings.HasSuffix(f.Name, "/") {
			names = append(names, f.Name)
		}
	}

	slices.Sort(names)

	if len(names) < 500 {
		t.Fatalf("only %d zones", len(names))
	}

	return names
}

// oracleCase is an expression, parsed by the oracle.
type oracleCase struct {
	expr string
	rule *oracleRule
}

// oracleCases are expressions of the whole language. Most of them have ticks at night, when clocks change.
var oracleCases = sync.OnceValue(func() []oracleCase {
	exprs := []string{
		"* * * * *", "*/20 * * * *", "7 * * * *", "*/15 0-4 * * *", "0 */2 * * *", "0 0-23 * * *", "0 0-23/2 * * *", "30 */3 * * *",
		"0 0 * * *", "1 0 * * *", "15 0 * * *", "30 0 * * *", "45 0 * * *", "59 0 * * *", "0 1 * * *", "15 1 * * *", "30 1 * * *", "45 1 * * *", "59 1 * * *",
		"0 2 * * *", "1 2 * * *", "15 2 * * *", "30 2 * * *", "45 2 * * *", "59 2 * * *", "0 3 * * *", "1 3 * * *", "15 3 * * *", "30 3 * * *", "59 3 * * *", "0 4 * * *",
		"0 12 * * *", "0 21 * * *", "30 22 * * *", "0 23 * * *", "30 23 * * *", "45 23 * * *", "59 23 * * *", "5,35 1,2,3 * * *", "* 2 * * *", "*/10 1-3 * * *", "0,59 0-23 * * *",
		"30 2 * * sun", "0 0 * * 0", "0 0 * * 7", "0 0 * * SAT", "45 1 * * mon-FRI", "0 0 */2 * 0,6", "10 2 29,30 * 7", "59 1 * mar-NOV *", "0 12 1-7 * mon", "30 2 * 1-6,9-12 *",
		"0 0 1 * *", "0 0 31 * *", "30 2 25-31 * *", "0 1 */2 * *", "0 1 1-31/2 * *", "0 2 13 * 5", "0 2 */13 * 5", "0 0 * JAN,Jul *", "0 0 29 2 *", "30 1 1 */3 *", "0 3 * 3-5 6,7",
		"0 0 L * *", "30 2 L * *", "59 23 L * *", "0 0 1,L * *", "30 2 l 3,10 *", "30 1 L * 0", "0 0 L * */2", "0 0 LW * *", "30 2 LW * *", "30 23 lw * *", "0 0 LW,L * *",
		"0 0 1W * *", "30 2 1W * *", "0 2 15W * *", "30 1 25w * *", "30 2 28W * *", "0 0 29W * *", "30 2 30W * *", "30 2 31W * *", "0 1 1W,15W,31W * *", "0 1 15W * 0",
		"0 0 * * 0#1", "30 2 * * 0#1", "30 2 * * 7#2", "30 2 * * sun#3", "0 2 * * SUN#4", "0 2 * * Sun#5", "0 0 * * 6#1", "30 23 * * 6#2", "0 1 * * 5#3", "0 0 * * 4#5", "0 1 * * 0#1,0#3", "30 2 10 * 0#1",
		"30 2 * * 0L", "0 2 * * 7L", "30 1 * * sunL", "0 3 * * SUNL", "0 0 * * 6L", "30 23 * * satL", "0 0 * * 5L", "0 1 * * 4l", "30 2 1 * 0L", "30 2 */2 * 0L", "30 2 * * 0#1,0L", "0 0 L * 0L",
		"30 2 L,1-7 * 6#2,3", "0 0 */5 3 1#4",
		"@hourly", "@daily", "@weekly", "@monthly", "@yearly",
	}
	// Expressions with H, for several tasks.
	for i, expr := range []string{"H * * * *", "H 2 * * *", "H H * * *", "H H(0-4) * * *", "H H(1-3) H * *", "H/15 * * * *", "H/15 H(1-3) * * *", "0 H/2 * * *", "H 2 * * H", "H(30-45) 1-2 * H *", "H 0 H(25-28) * *", "0 0 H/7 * *"} {
		list, err := schedule.Spread([]string{expr}, "default", fmt.Sprintf("task-%d", i))
		if err != nil {
			panic(err)
		}
		exprs = append(exprs, list...)
	}

	// Random expressions.
	random := rand.New(rand.NewPCG(4, 4))
	pick := func(from ...string) string { return from[random.IntN(len(from))] }

	for len(exprs) < 240 {
		minute := pick("0", "15", "30", "45", "59", "*/7", "*/30", fmt.Sprint(random.IntN(60)), fmt.Sprintf("%d-%d/%d", random.IntN(30), 30+random.IntN(30), 1+random.IntN(20)))
		hour := pick("0", "1", "2", "2", "3", "23", "0-4", "22,23,0", "1-3", "*", "*/2", "0-23", fmt.Sprint(random.IntN(24)))
		day := pick("*", "*", "*", "1-15", "16-31", "*/3", "L", "LW", "1W", "15W", "L,LW,8W", fmt.Sprint(1+random.IntN(28)))
		month := pick("*", "*", "*", "3", "3,4,9-11", "*/2", "oct", "Jan-Jun")
		weekday := pick("*", "*", "*", "0", "7", "6,0", "1-5", "sun", "0L", "0#1,0#2", "5#4", "sat#5", "*/2", "MON,sunL")

		expr := strings.Join([]string{minute, hour, day, month, weekday}, " ")
		if schedule.Check(task.Timing{Schedule: []string{expr}}) == nil && !slices.Contains(exprs, expr) {
			exprs = append(exprs, expr)
		}
	}

	spelt := map[string]string{"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *"}
	var cases []oracleCase
	for _, expr := range exprs {
		text := expr
		if spelt[expr] != "" {
			text = spelt[expr]
		}
		cases = append(cases, oracleCase{expr, newOracleRule(text)})
	}

	return cases
})

func TestNext_AgreesWithOracleAtEveryTransition(t *testing.T) {
	racetest.SkipIfShort(t)

	cases := oracleCases()
	if len(cases) < 200 {
		t.Fatalf("only %d expressions", len(cases))
	}

	// Compare one in every clock changes of a zone. want is how many comparisons there must be.
	every, want := 7, 35_000

	switch {
	case *everything:
		every, want = 1, 31_000*200*2
	case testing.Short():
		every, want = 61, 4_000
	}

	const parts = 2 // as many as run in parallel
	names := allZones(t)
	var counted sync.Map
	t.Run("zones", func(t *testing.T) {
		for part := range parts {
			t.Run(fmt.Sprint(part), func(t *testing.T) {
				t.Parallel()
				total := 0
				for i, name := range names {
					if i%parts == part {
						total += agreeInZone(t, name, i, every, cases)
					}
				}

				counted.Store(part, total)
			})
		}
	})

	total := 0
	counted.Range(func(_, n any) bool { total += n.(int); return true })
	t.Logf("%d times an expression was held against the oracle at a change of a clock", total)

	if total < want {
		t.Errorf("only %d comparisons; want %d", total, want)
	}
}

// agreeInZone compares one in every clock changes of a zone, and returns the number of comparisons.
func agreeInZone(t *testing.T, name string, zone, every int, cases []oracleCase) int {
	location, err := schedule.Location(name)
	if err != nil {
		t.Fatal(err)
	}

	count := 0
	for i, change := range transitionsOf(name, location) {
		if (i+zone)%every != 0 {
			continue
		}

		before, after := 4*time.Hour, 4*time.Hour
		if *everything {
			before, after = 26*time.Hour, 26*time.Hour
		}

		step := time.Minute
		if change.before%60 != 0 || change.after%60 != 0 {
			step, before, after = time.Second, 2*time.Hour, 2*time.Hour
		}

		w := newWindow(location, change.at.Add(-before), change.at.Add(after), step)

		for j, c := range cases {
			if !*everything && (i*7+zone*3+j)%24 != 0 {
				continue
			}

			policies := []task.DST{{}, {Gap: task.GapSkip, Fold: task.FoldBoth}}
			if !*everything {
				policies = policies[(i/every+j)%2:][:1]
			}

			for _, dst := range policies {
				count++
				agree(t, name, c, dst, w)
			}
		}

		if t.Failed() {
			return count
		}
	}

	return count
}

// agree compares all methods that compute ticks with the oracle, in one window.
func agree(t *testing.T, zone string, c oracleCase, dst task.DST, w *window) {
	t.Helper()
	s, err := schedule.Parse(task.Timing{Schedule: []string{c.expr}, Timezone: zone, DST: dst}, anchor)
	if err != nil {
		t.Fatal(err)
	}

	want := w.noted([]*oracleRule{c.rule}, dst)
	now := w.after
	for _, tick := range want {
		next, ok := s.Next(now)
		if !ok || !next.Equal(tick.Time) {
			t.Errorf("%s %q %+v: after %v comes %v, %v; want %v", zone, c.expr, dst, now, next, ok, tick.Time)
			return
		}

		now = next
	}

	if next, ok := s.Next(now); ok && !next.After(w.upTo) {
		t.Errorf("%s %q %+v: after %v comes %v; want none", zone, c.expr, dst, now, next)
		return
	}

	if len(want) == 0 {
		return
	}

	first, last, count, _ := s.Missed(w.after, w.upTo, 0)
	if count != int64(len(want)) || !first.Equal(want[0].Time) || !last.Equal(now) {
		t.Errorf("%s %q %+v: Missed(%v, %v) = %v, %v, %d; want %v, %v, %d", zone, c.expr, dst, w.after, w.upTo, first, last, count, want[0].Time, now, len(want))
	}

	for i := range want {
		if *everything && want[i].note == "" && i%16 != 0 {
			continue
		}

		if r := s.At(want[i].Time); !r.Tick || r.Note != want[i].note || i > 0 && !r.Previous.Equal(want[i-1].Time) || i < len(want)-1 && !r.Next.Equal(want[i+1].Time) {
			t.Errorf("%s %q %+v: at %v: %+v; want a tick, note %q", zone, c.expr, dst, want[i].Time, r, want[i].note)
			return
		}
	}
}
