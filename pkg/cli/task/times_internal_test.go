package task

import (
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
)

// A time that the user passes must not be read in UTC silently because this program does not know the zone of the task.
func TestAboutTask_RefusesTimesInAnUnknownZone(t *testing.T) {
	for _, c := range []struct {
		zone, mode, passed string
		refused            bool
	}{
		{"Mars/X", output.TimeRelative, "18:00", true},
		{"Mars/X", output.TimeTask, "18:00", true},
		{"Mars/X", output.TimeUTC, "18:00", false},
		{"Mars/X", output.TimeLocal, "18:00", false},
		{"Mars/X", output.TimeRelative, "", false},
		{"Asia/Tokyo", output.TimeRelative, "18:00", false},
		{"", output.TimeRelative, "18:00", false},
	} {
		d := factorytest.New("")
		d.TimeMode = c.mode

		var of client.Task
		of.Name, of.Timezone = "far", c.zone

		err := aboutTask(d.Factory, of, "", c.passed)
		if c.refused != (err != nil) || err != nil && !strings.Contains(err.Error(), `"far" is in the time zone "Mars/X", which this program does not know`) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// --time local cannot be obeyed if the zone of the user has no name, because the server computes the answer of why.
func TestZoneOfAnswer_NeedsAName(t *testing.T) {
	d := factorytest.New("")
	for mode, want := range map[string]string{output.TimeRelative: "", output.TimeTask: "", output.TimeUTC: "UTC", output.TimeLocal: "Asia/Tokyo"} {
		d.TimeMode, d.Local = mode, time.FixedZone("Asia/Tokyo", 9*60*60)
		if got, err := zoneOfAnswer(d.Factory); got != want || err != nil {
			t.Errorf("%s: %q, %v", mode, got, err)
		}
	}

	d.TimeMode, d.Local = output.TimeLocal, time.FixedZone("odd", 60*60)
	if got, err := zoneOfAnswer(d.Factory); err == nil || !strings.Contains(err.Error(), "--time local") {
		t.Errorf("without a name: %q, %v", got, err)
	}
}
