package schema

import (
	"regexp"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestDurationPattern_MatchesWhatIsParsed(t *testing.T) {
	pattern := regexp.MustCompile(durationPattern)
	for _, text := range []string{
		"90s", "1h30m", "-5m", "+1.5h", ".5s", "0", "2d", "1w", "1w2d", "2d12h", "1d1.5h",
		"", "d", "1", "1 d", "-1d", "1d-2h", "1.5d", "2d1w", "1d2", "1day", "10 secs",
	} {
		if _, err := task.ParseDuration("timeout", text); pattern.MatchString(text) != (err == nil) {
			t.Errorf("%q: the pattern says %t, and the error is %v", text, pattern.MatchString(text), err)
		}
	}
}
