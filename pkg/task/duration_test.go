package task

import (
	"testing"
	"time"
)

func TestDuration_Approximate_SaysTheTwoLargestUnits(t *testing.T) {
	for in, want := range map[time.Duration]string{
		0: "0ms", 12 * time.Millisecond: "12ms", 999*time.Millisecond + 999: "999ms", time.Second: "1s", 59*time.Second + 900*time.Millisecond: "59s",
		time.Minute: "1m", 61 * time.Second: "1m 1s", time.Hour: "1h", 3*time.Hour + 18*time.Minute + 59*time.Second: "3h 18m",
		24 * time.Hour: "1d", 57 * time.Hour: "2d 9h", 1000 * time.Hour: "41d 16h", 9000 * time.Hour: "375d", -90 * time.Second: "-1m 30s",
	} {
		if got := Duration(in).Approximate(); got != want {
			t.Errorf("%s: Approximate() = %q, want %q", in, got, want)
		}
	}
}
