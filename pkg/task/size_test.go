package task_test

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestSize_ReadsWhatPeopleWrite(t *testing.T) {
	for text, want := range map[string]task.Size{
		"0": 0, "100": 100, "64k": 64_000, "64K": 64_000, "64Ki": 64 << 10, "1.5Gi": 3 << 29, "10G": 10_000_000_000, "2 MiB": 2 << 20, "5MB": 5_000_000, " 1Ti ": 1 << 40, "1.024k": 1024, "1.1Gi": 1181116006,
		"1125899906842623": 1<<50 - 1, "9007199254740993": 1<<53 + 1, "9223372036854775807": math.MaxInt64,
	} {
		if got, err := task.ParseSize("limits.memory", text); err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}

	for _, text := range []string{"", "-1", "Gi", "1i", "1Xi", "1e3", "99999999999999Ti", "9223372036854775808", "9007199254740993Ki", "1..5M", "0x10", "1 G G", "1.5", "1.5B"} {
		_, err := task.ParseSize("limits.memory", text)
		var is *task.Error
		if !errors.As(err, &is) || is.Field != "limits.memory" {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestSize_IsReadBackAsItIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := task.Size(rapid.Int64Range(0, math.MaxInt64).Draw(t, "bytes") &^ (1<<rapid.IntRange(0, 40).Draw(t, "round") - 1))
		if back, err := task.ParseSize("", s.String()); err != nil || back != s {
			t.Fatalf("%d is written %s and read as %d, %v", s, s, back, err)
		}
	})
}
