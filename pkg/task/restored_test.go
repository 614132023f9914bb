package task

import (
	"testing"
	"time"
)

func TestNextEpoch(t *testing.T) {
	now := time.Date(2026, 11, 28, 10, 0, 0, 0, time.UTC)
	seconds := int(now.Unix())
	for old, want := range map[int]int{1: seconds, seconds - 1: seconds, seconds: seconds + 1, seconds + 500: seconds + 501} {
		if got := NextEpoch(old, now); got != want {
			t.Errorf("after epoch %d: %d; want %d", old, got, want)
		}
	}
}

func TestCluster_Gap(t *testing.T) {
	at := func(hour int) Time { return At(time.Date(2026, 11, 28, hour, 0, 0, 0, time.UTC)) }
	restore := func(revision int64, backup, until int) Restored {
		return Restored{Revision: revision, BackupTime: at(backup), Until: at(until)}
	}
	recovery := Restored{Revision: 900}

	for name, c := range map[string]struct {
		restores []Restored
		until    int // 0: there is no gap
		revision int64
	}{
		"never restored":                {},
		"moved":                         {restores: []Restored{restore(10, 5, 5)}},
		"recovered by hand":             {restores: []Restored{recovery}},
		"restored":                      {[]Restored{restore(10, 2, 9)}, 9, 10},
		"restored, then moved":          {[]Restored{restore(10, 2, 9), restore(20, 11, 11)}, 9, 10},
		"restored, then recovered":      {[]Restored{restore(10, 2, 9), recovery}, 9, 10},
		"restored twice":                {[]Restored{restore(10, 2, 9), restore(20, 10, 12)}, 12, 20},
		"restored twice, until earlier": {[]Restored{restore(10, 2, 9), restore(20, 3, 8)}, 9, 20},
	} {
		cluster := Cluster{Restored: c.restores}
		g := cluster.Gap()
		if (g != nil) != (c.until != 0) {
			t.Errorf("%s: %+v", name, g)
			continue
		}
		if g == nil {
			if g.Covers(at(0).Time) || g.HasRecord(1) {
				t.Errorf("%s: something is in the gap", name)
			}
			continue
		}

		until := at(c.until).Time
		if !g.Covers(until) || g.Covers(until.Add(time.Millisecond)) || !g.HasRecord(c.revision) || g.HasRecord(c.revision+1) {
			t.Errorf("%s: %+v", name, g)
		}
	}
}
