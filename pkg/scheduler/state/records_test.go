package state

import (
	"maps"
	"testing"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// newRecords returns the records of a shard with one task, default/a, whose entry has mod revision 5.
func newRecords() *Records {
	r := &Records{WatermarkRev: 7}
	t := r.TaskNamed("default/a")
	t.Present, t.Mod = true, 5

	return r
}

func entryOf(r *Records, name string, mod int64) store.ShardEvent {
	ref := record.Ref{Namespace: "default", Name: name}

	return store.ShardEvent{
		ShardKey: record.ShardKey{Kind: record.KindEntry, Ref: ref}, Task: ref.String(), Key: r.Keys.Entry(ref), Mod: mod,
	}
}

func TestDifferingRecords_ListsWhatIsMissingNewerOrGone(t *testing.T) {
	t.Parallel()

	r := newRecords()
	a, b := entryOf(r, "a", 5), entryOf(r, "b", 6)
	newer := entryOf(r, "a", 8)

	for _, c := range []struct {
		name string
		keys []store.ShardEvent
		rev  int64
		want map[string]int64
	}{
		{"the same", []store.ShardEvent{a}, 9, map[string]int64{}},
		{"one that is not known", []store.ShardEvent{a, b}, 9, map[string]int64{b.Key: 6}},
		{"a newer version", []store.ShardEvent{newer}, 9, map[string]int64{a.Key: 8}},
		{"one that is gone", nil, 9, map[string]int64{a.Key: 0}},
		{"one that was made after the list", nil, 4, map[string]int64{}},
		{"a newer watermark", []store.ShardEvent{a, {ShardKey: record.ShardKey{Kind: record.KindWatermark}, Key: "watermark", Mod: 8}}, 9, map[string]int64{"watermark": 8}},
	} {
		if got := r.DifferingRecords(c.keys, c.rev); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestDifferingRuns_ListsWhatOnlyOneTakesForActive(t *testing.T) {
	t.Parallel()

	r := newRecords()
	a := r.TaskNamed("default/a")
	known := &Attempt{Run: "20261124T110000Z-abcd", Node: "n1", Create: 6}
	a.Activity = &Activity{Active: []*Attempt{known}}

	key := func(run string, create int64) store.ActiveKey {
		return store.ActiveKey{RunKey: record.RunKey{Node: "n1", Ref: a.Ref(r.Shard), Run: run}, Create: create}
	}

	if d := r.DifferingRuns([]store.ActiveKey{key(known.Run, 6)}, 9); d.NotEmpty() {
		t.Errorf("the same attempts differ: %+v", d)
	}

	other := key("20261124T110100Z-abcd", 8)
	d := r.DifferingRuns([]store.ActiveKey{other}, 9)
	if len(d.Unknown) != 1 || d.Unknown[0] != other || len(d.Gone) != 1 || d.Gone[0] != known || d.GoneOf[0] != a {
		t.Errorf("found %+v", d)
	}

	if d := r.DifferingRuns(nil, 5); d.NotEmpty() {
		t.Errorf("an attempt that was dispatched after the list differs: %+v", d)
	}
}
