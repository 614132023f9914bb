package factory_test

import (
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
)

func TestParseTime_ReadsTimesInTheZone(t *testing.T) {
	zone := time.FixedZone("CET", 3600)
	for text, want := range map[string]string{
		"2027-03-28T01:30:00Z": "2027-03-28T01:30:00Z",
		"2027-03-28":           "2027-03-27T23:00:00Z",
		"2027-03-28T01:30":     "2027-03-28T00:30:00Z",
		"2027-03-28 01:30:05":  "2027-03-28T00:30:05Z",
	} {
		got, err := factory.ParseTime("from", text, zone)
		if err != nil || got.UTC().Format(time.RFC3339) != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}

	if got, err := factory.ParseTime("from", "", zone); err != nil || !got.IsZero() {
		t.Errorf("an empty value: %s, %v; want the zero time", got, err)
	}
}

func TestParseTime_NamesTheFlagThatWasGiven(t *testing.T) {
	for _, flag := range []string{"from", "until", "since"} {
		_, err := factory.ParseTime(flag, "tomorrow", time.UTC)
		if err == nil || !strings.HasPrefix(err.Error(), "--"+flag+` "tomorrow": `) {
			t.Errorf("%v does not name --%s", err, flag)
		}
	}
}
