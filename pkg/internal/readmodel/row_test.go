package readmodel

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
)

// A row of a million tasks costs 72 bytes, and a chunk of them little more.
func TestRow_Is72Bytes(t *testing.T) {
	t.Parallel()

	if size := unsafe.Sizeof(Row{}); size != 72 {
		t.Errorf("a row has %d bytes", size)
	}

	// The allocator puts 8 bytes in front of memory with pointers that is larger than 512 bytes.
	if size := unsafe.Sizeof(chunk{}) + 8; size > 8192 || size+72 <= 8192 {
		t.Errorf("a chunk has %d bytes", size)
	}
}

func TestIndex_KeepsRowsAsTheyAre(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		r := Row{
			Name: rapid.StringMatching(`[a-c]{1,3}/[a-c]{1,3}`).Draw(t, "name"), Labels: map[string]string{"team": "data"}, Schedule: &schedule.Schedule{},
			Next:        rapid.Int64Min(0).Draw(t, "next"),
			Delay:       rapid.Int32Min(0).Draw(t, "delay"),
			LastEnd:     rapid.Int64Min(0).Draw(t, "last end"),
			LastSuccess: rapid.Uint32().Draw(t, "last success"),
			Duration:    rapid.Int32Min(0).Draw(t, "duration"),
			Lateness:    rapid.Int32Min(0).Draw(t, "lateness"),
			Failures:    rapid.Uint16().Draw(t, "failures"),
			Active:      rapid.Uint16().Draw(t, "active"),
			Waiting:     rapid.Uint16().Draw(t, "waiting"),
			Flags:       anyFlags(t),
		}
		r.SetLast(Outcome(rapid.IntRange(0, len(outcomes)-1).Draw(t, "last")))

		var x Index
		if got := x.Row(x.Put(NoSlot, r, Details{}, nil)); fmt.Sprint(got) != fmt.Sprint(r) || got.Schedule != r.Schedule {
			t.Fatalf("it is read as\n%+v, want\n%+v", got, r)
		}
	})
}

// Of numbers that are too large for a row, the largest possible one is kept. A part of a second is rounded down.
func TestRow_Limits(t *testing.T) {
	t.Parallel()

	for ms, want := range map[int64]uint32{-1: 0, 0: 0, 999: 0, 1_700_000_000_999: 1_700_000_000, math.MaxInt64: math.MaxUint32} {
		if got := Seconds(ms); got != want {
			t.Errorf("%d ms are %d s, want %d", ms, got, want)
		}
	}

	for n, want := range map[int]uint16{0: 0, 65_535: 65_535, 65_536: 65_535} {
		if got := Count(n); got != want {
			t.Errorf("%d are counted as %d, want %d", n, got, want)
		}
	}
}

// anyFlags returns flags that a row may have, without those of alerts and metrics.
func anyFlags(t *rapid.T) Flags {
	if rapid.IntRange(0, 3).Draw(t, "gone") == 0 {
		return Gone
	}
	return Flags(rapid.IntRange(0, int(Workflow*2-1)).Draw(t, "flags"))
}
