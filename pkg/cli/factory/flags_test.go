package factory_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestParseTime_ReadsTimesInTheZone(t *testing.T) {
	zone, err := schedule.Location("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	f := factorytest.New("")

	for text, want := range map[string]string{
		"2027-03-28T01:30:00Z": "2027-03-28T01:30:00Z",
		"2027-03-28":           "2027-03-27T23:00:00Z",
		"2027-03-28T01:30":     "2027-03-28T00:30:00Z",
		"2027-03-28 01:30:05":  "2027-03-28T00:30:05Z",
	} {
		got, err := f.ParseTime("from", text, zone, schedule.Nearest)
		if err != nil || got.UTC().Format(time.RFC3339) != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}

	if got, err := f.ParseTime("from", "", zone, schedule.Past); err != nil || !got.IsZero() {
		t.Errorf("an empty value: %s, %v; want the zero time", got, err)
	}
	if got, err := f.ParseEnd("until", "2h ago", zone); err == nil {
		t.Errorf("an end that has passed: %s", got)
	}

	for _, flag := range []string{"from", "until", "since"} {
		_, err := f.ParseTime(flag, "soon", zone, schedule.Past)
		if err == nil || !strings.HasPrefix(err.Error(), "--"+flag+`: "soon" is not a time`) || !strings.Contains(err.Error(), "(in Europe/Berlin)") {
			t.Errorf("%v does not name --%s and the zone", err, flag)
		}
	}
}

// What tables print can be typed: every format of a time is read as the time that it shows.
func TestParseTime_ReadsWhatTablesPrint(t *testing.T) {
	f := factorytest.New("")
	now := f.Now()

	for _, mode := range []string{output.TimeRelative, output.TimeLocal, output.TimeTask, output.TimeUTC} {
		for _, name := range []string{"Europe/Berlin", "America/New_York", "Asia/Kolkata", "America/Sao_Paulo", "UTC"} {
			f.TimeMode = mode
			f.AboutTask(name)
			zone := f.Zone(name)

			for hours := -400 * 24; hours < 400*24; hours += 61 {
				at := task.At(now.Add(time.Duration(hours)*time.Hour + time.Duration(hours%3600)*time.Second).Truncate(time.Second))
				local := at.In(zone)
				shown := map[string]string{
					"ExactTime": f.ExactTime(at, name), "weekday and ExactTime": f.WeekdayDate(at, name),
					"DateTime": f.DateTime(at, name), "RFC 3339": local.Format(time.RFC3339), "PastOrFuture": f.PastTime(at, name),
				}
				if hours > -24 {
					shown["FutureTime"] = f.FutureTime(at, name)
				}
				if hours >= 0 {
					delete(shown, "PastOrFuture")
					shown["TimeLeft"] = f.TimeLeft(at)
				}
				if hours > -24 && hours < 24 && local.Format(time.DateOnly) == now.In(zone).Format(time.DateOnly) {
					shown["ClockTime"] = f.ClockTime(at, name)
				}

				for format, text := range shown {
					got, err := f.ParseTime("at", text, zone, schedule.Nearest)
					accuracy := time.Duration(0)
					switch {
					case err != nil:
						t.Fatalf("%s of %s in %s: %v", format, at, zone, err)
					case strings.HasSuffix(text, "ago"), format == "TimeLeft":
						accuracy = 24 * time.Hour // in two units, without the rest
						if d := at.Sub(now).Abs(); d < 100*24*time.Hour {
							accuracy = time.Hour
						}
					}
					if off := got.Sub(at.Time).Abs(); off > accuracy {
						t.Fatalf("%s of %s in %s: %q is read as %s", format, at, zone, text, got)
					}
				}
			}
		}
	}
}

func TestDurationVar_ShowsOnlyADefaultThatMeansSomething(t *testing.T) {
	flags, d := pflag.NewFlagSet("", pflag.ContinueOnError), time.Duration(0)
	factory.DurationVar(flags, &d, "for", 0, "look ahead for this `DURATION`")
	factory.DurationVar(flags, &d, "within", 10*time.Minute, "stop after this `DURATION`")
	if help := flags.FlagUsages(); strings.Contains(help, "0s") || !strings.Contains(help, "(default 10m)") {
		t.Error(help)
	}
}
