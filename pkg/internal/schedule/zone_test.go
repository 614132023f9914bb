package schedule

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// zoneNames returns the names of all zones in the database, in order.
func zoneNames(t testing.TB) []string {
	files, err := zoneFiles()
	if err != nil {
		t.Fatal(err)
	}

	var names []string
	for name := range files {
		names = append(names, name)
	}

	sort.Strings(names)

	if len(names) < 500 {
		t.Fatalf("only %d zones", len(names))
	}

	return names
}

// nextTick, previousTick and the counter rely on this: periods adjoin, have different offsets, and are far longer
// than any clock jump.
func TestZones_HaveLongStretches(t *testing.T) {
	for _, name := range zoneNames(t) {
		z, err := loadZone(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}

		s := z.periods
		if s[0].start != firstSecond || s[len(s)-1].end != endSecond || s[0].before != s[0].offset {
			t.Errorf("%s: periods do not cover 1970 to 2100", name)
		}

		for i := 1; i < len(s); i++ {
			jump := max(s[i].offset-s[i].before, s[i].before-s[i].offset)
			if s[i].start != s[i-1].end || s[i].before != s[i-1].offset || jump == 0 {
				t.Errorf("%s: periods %d and %d do not join", name, i-1, i)
			}

			if jump > 24*3600 || s[i].end-s[i].start < 2*24*3600+jump {
				t.Errorf("%s: a jump of %d s, then a period of %d s", name, jump, s[i].end-s[i].start)
			}
		}
	}
}

func TestZones_AgreeWithPackageTime(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))

	for _, name := range zoneNames(t) {
		z, err := loadZone(name)
		if err != nil {
			t.Fatal(err)
		}

		check := func(instant int64) {
			_, want := time.Unix(instant, 0).In(z.location).Zone()
			if got := z.periods[z.periodAt(instant)].offset; got != int64(want) {
				t.Errorf("%s at %v: offset %d, want %d", name, time.Unix(instant, 0).UTC(), got, want)
			}
		}

		for _, s := range z.periods {
			check(s.start)
			check(s.end - 1)
		}

		for range 100 {
			check(firstSecond + random.Int64N(endSecond-firstSecond))
		}
	}
}

// Compares the offset of every day, so that no pair of changes can be overlooked.
func TestZones_MissNoChange(t *testing.T) {
	for _, name := range []string{"Europe/Berlin", "Africa/Casablanca", "Asia/Gaza", "Australia/Lord_Howe", "Antarctica/Casey"} {
		z, err := loadZone(name)
		if err != nil {
			t.Fatal(err)
		}

		for instant := firstSecond; instant < endSecond; instant += 12 * 3600 {
			_, want := time.Unix(instant, 0).In(z.location).Zone()
			if got := z.periods[z.periodAt(instant)].offset; got != int64(want) {
				t.Fatalf("%s at %v: offset %d, want %d", name, time.Unix(instant, 0).UTC(), got, want)
			}
		}
	}
}

// Neither the host's own zone files nor ZONEINFO have an effect.
func TestZones_IgnoreTheHost(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "Europe"), 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(dir, "Europe", "Atlantis"), []byte("TZif2"), 0o644); err != nil {
		t.Fatal(err)
	}

	t.Setenv("ZONEINFO", dir)
	t.Setenv("TZ", "Asia/Tokyo")

	if _, err := findZone("Europe/Atlantis"); err == nil {
		t.Error("a zone of the host was taken")
	}

	z, err := loadZone("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}

	if _, offset := time.Unix(1767225600, 0).In(z.location).Zone(); offset != 3600 {
		t.Errorf("Berlin in winter is %d s from UTC", offset)
	}
}

func TestPlanCache_IsBoundedAndShares(t *testing.T) {
	c := planCache{limit: 10}

	for i := range 60 {
		exprs := []string{cronFields[1].plainRange(i, i, 1) + " * * * *"}
		p, err := c.getPlan(task.Timing{Schedule: exprs})
		if err != nil {
			t.Fatal(err)
		}

		if again, _ := c.getPlan(task.Timing{Schedule: exprs}); again != p {
			t.Errorf("%q was parsed twice", exprs)
		}

		if other, _ := c.getPlan(task.Timing{Schedule: exprs, Timezone: "Europe/Berlin"}); other == p {
			t.Errorf("%q has one plan in two zones", exprs)
		}

		if len(c.plans) > c.limit {
			t.Fatalf("%d plans are more than %d", len(c.plans), c.limit)
		}
	}

	if _, err := c.getPlan(task.Timing{Schedule: []string{"@at 2026-12-24T18:00:00Z"}}); err != nil || len(c.plans) > c.limit {
		t.Error(err)
	}
}
