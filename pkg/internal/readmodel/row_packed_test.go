package readmodel

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
)

// A row of a million tasks costs 64 bytes, and a chunk of them little more.
func TestPackedRow_Is64Bytes(t *testing.T) {
	t.Parallel()

	if size := unsafe.Sizeof(packedRow{}); size != 64 {
		t.Errorf("a row has %d bytes", size)
	}

	// The allocator puts 8 bytes in front of memory with pointers that is larger than 512 bytes.
	if size := unsafe.Sizeof([chunkRows]packedRow{}) + 8; size > 8192 || size+64 <= 8192 {
		t.Errorf("a chunk has %d bytes", size)
	}
}

// stored returns a row as it is read from an Index.
func stored(r Row) Row {
	var x Index
	return x.Row(x.Put(NoSlot, r, 0))
}

func TestPackedRow_KeepsRowsUpToItsLimits(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		r := Row{
			Name: rapid.StringMatching(`[a-c]{1,3}/[a-c]{1,3}`).Draw(t, "name"), Labels: map[string]string{"team": "data"}, Schedule: &schedule.Schedule{},
			Next:        rapid.Int64Min(0).Draw(t, "next"),
			LastEnd:     rapid.Int64Min(0).Draw(t, "last end"),
			LastSuccess: rapid.Int64Range(0, math.MaxUint32).Draw(t, "last success") * 1000,
			Duration:    rapid.Int32Min(0).Draw(t, "duration"),
			Lateness:    rapid.Int32Min(0).Draw(t, "lateness"),
			Failures:    rapid.Uint16().Draw(t, "failures"),
			Active:      rapid.Uint16Max(MaxRuns).Draw(t, "active"),
			Waiting:     rapid.Uint16Max(MaxRuns).Draw(t, "waiting"),
			Last:        Outcome(rapid.IntRange(0, len(outcomes)-1).Draw(t, "last")),
			Flags:       Flags(rapid.IntRange(0, int(Paused|Unreadable|Failing|History)).Draw(t, "flags")),
		}

		if got := stored(r); fmt.Sprint(got) != fmt.Sprint(r) || got.Schedule != r.Schedule {
			t.Fatalf("it is read as\n%+v, want\n%+v", got, r)
		}
	})
}

func TestPackedRow_KeepsTheLimitForWhatIsBeyond(t *testing.T) {
	t.Parallel()

	full := stored(Row{
		Name: "a/b", Next: math.MaxInt64, LastEnd: math.MaxInt64, LastSuccess: math.MaxInt64, Duration: math.MaxInt32, Lateness: math.MaxInt32,
		Failures: math.MaxUint16, Active: math.MaxUint16, Waiting: MaxRuns + 1,
	})
	want := Row{
		Name: "a/b", Next: math.MaxInt64, LastEnd: math.MaxInt64, LastSuccess: math.MaxUint32 * 1000, Duration: math.MaxInt32, Lateness: math.MaxInt32,
		Failures: math.MaxUint16, Active: MaxRuns, Waiting: MaxRuns,
	}

	if fmt.Sprint(full) != fmt.Sprint(want) {
		t.Errorf("it is read as\n%+v, want\n%+v", full, want)
	}

	// A part of a second is lost once, and not with each change.
	var x Index
	slot := x.Put(NoSlot, Row{Name: "a/b", LastSuccess: 1_700_000_000_999, LastEnd: 1_700_000_000_999}, 0)

	for range 1000 {
		x.Change(slot, func(r *Row) { r.LastEnd += 1001; r.Failures++ })
	}

	if got := x.Row(slot); got.LastSuccess != 1_700_000_000_000 || got.LastEnd != 1_700_001_001_999 || got.Failures != 1000 {
		t.Errorf("after many changes: %+v", got)
	}
}
