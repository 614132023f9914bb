package load

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// factoryFor returns a factory that prints in UTC.
func factoryFor(ascii bool) *factory.Factory {
	f := factory.New(factory.IO{Out: io.Discard, Err: io.Discard, Env: func(string) string { return "" }})
	f.TimeMode, f.Color, f.ASCII = output.TimeUTC, "never", ascii

	return f
}

// loadOf returns a load from 22:30 on, of two hours.
func loadOf(runs map[int]float64) client.TaskLoad {
	l := client.TaskLoad{From: task.At(time.Date(2026, 11, 25, 22, 30, 0, 0, time.UTC)), Step: task.Duration(time.Minute), Runs: make([]float64, 120)}
	for minute, n := range runs {
		l.Runs[minute] = n
	}

	return l
}

func TestHeatMap(t *testing.T) {
	t.Parallel()

	l := loadOf(map[int]float64{0: 1, 30: 10, 31: 0.25, 90: 1000, 119: 3})
	for _, c := range []struct {
		name  string
		ascii bool
		width int
		want  string
	}{
		{"wide", false, 0, `
UTC   :00       :10       :20       :30       :40       :50
22:00                               ▁                                       1
23:00 ▃▁                                                                   10
00:00 █                            ▂                                    1,003
      ▁ 1 … █ 1,000 runs in a minute
`},
		{"narrow", true, 50, `
UTC   :00  :10  :20  :30  :40  :50
22:00                .                        1
23:00 -                                      10
00:00 @             :                     1,003
      . 1 ... @ 1,000 runs in 2 minutes
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()

			got := heatMap(factoryFor(c.ascii), l, c.width)
			for line := range strings.Lines(got) {
				if c.width > 0 && len([]rune(strings.TrimRight(line, "\n"))) > c.width {
					t.Errorf("%q is wider than %d", line, c.width)
				}
			}
			if trimLines(got) != trimLines(c.want[1:]) {
				t.Errorf("got\n%s", got)
			}
		})
	}
}

// The hour that the change of the clocks repeats is below the name of its zone.
func TestHeatMap_NamesTheZoneAgainWhereItChanges(t *testing.T) {
	t.Parallel()

	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip(err)
	}

	f := factoryFor(true)
	f.TimeMode, f.Local = output.TimeLocal, zone
	l := loadOf(map[int]float64{0: 1})
	l.From = task.At(time.Date(2026, 10, 25, 0, 0, 0, 0, time.UTC))

	var labels []string
	for line := range strings.Lines(heatMap(f, l, 0)) {
		labels = append(labels, strings.Fields(line)[0])
	}
	if got := strings.Join(labels, " "); got != "CEST 02:00 CET 02:00 ." {
		t.Errorf("labels %q", got)
	}
}

// trimLines removes spaces at the ends of lines.
func trimLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}

	return strings.Join(lines, "\n")
}

func TestLevelOf_IsMonotoneAndComplete(t *testing.T) {
	t.Parallel()

	for _, most := range []float64{0.3, 1, 2, 7.5, 1e6} {
		before := 0
		for runs := most / 1e4; runs < most; runs *= 1.1 {
			level := levelOf(runs, most, 8)
			if level < max(before, 1) || level > 8 {
				t.Fatalf("%v of %v: level %d after %d", runs, most, level, before)
			}
			before = level
		}
		if level := levelOf(most, most, 8); level != 8 {
			t.Errorf("%v of %v: level %d", most, most, level)
		}
	}

	if levelOf(0, 5, 8) != 0 {
		t.Error("no runs have a level")
	}
}

func TestHoursOf_FollowTheLocalClock(t *testing.T) {
	t.Parallel()

	zone, err := time.LoadLocation("Asia/Kathmandu") // UTC+5:45
	if err != nil {
		t.Skip(err)
	}

	hours := hoursOf(loadOf(map[int]float64{15: 7}), zone)
	if len(hours) != 3 || hours[0].Begins.Format("15:04") != "04:00" || !hours[0].Known[15] || hours[0].Known[14] || hours[0].Runs[30] != 7 || hours[2].Known[15] {
		t.Errorf("%+v", hours)
	}
}

// Where the clock changes by half an hour, the rest of an hour is an hour of its own.
func TestHoursOf_ClockThatChangesByHalfAnHour(t *testing.T) {
	t.Parallel()

	zone, err := time.LoadLocation("Australia/Lord_Howe")
	if err != nil {
		t.Skip(err)
	}

	l := loadOf(nil)
	l.From = task.At(time.Date(2026, 4, 4, 13, 30, 0, 0, time.UTC)) // at 15:00 UTC, the clock goes back from 02:00 to 01:30
	hours := hoursOf(l, zone)
	got := ""
	for i := range hours {
		got += hours[i].label() + " "
	}
	if !strings.HasPrefix(got, "00:00 01:00 01:00 ") || hours[2].Known[29] || !hours[2].Known[30] {
		t.Errorf("hours %s", got)
	}
}
