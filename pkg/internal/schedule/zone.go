package schedule

import (
	"archive/zip"
	_ "embed"
	"fmt"
	"io"
	"sort"
	"strings"
	"sync"
	"time"
)

// zoneDatabase is the IANA database as Go ships it in lib/time (public domain, its release is in
// lib/time/update.bash of the Go tree). It is a file of this package, and not an import of time/tzdata, because
// time.LoadLocation reads the host's own files first. Two nodes with different tzdata packages, or with a file
// system that ignores case, would then disagree about when a task is due. With this file, a zone is the same on
// every host that runs the same build. To update it, copy lib/time/zoneinfo.zip of a newer Go here.
//
//go:embed zoneinfo.zip
var zoneDatabase string

// Ticks exist from 1970-01-02 to 2100. They begin on the second day so that no local time is before 1970. The
// bounds are instants in Unix seconds: the first that may be a tick, and the first that may not. Times that users
// write are in the years 2000 to 2100.
const (
	firstSecond  = int64(daySeconds)
	firstWritten = 946684800  // 2000-01-01
	endSecond    = 4133980800 // 2101-01-01
)

// offsetPeriod is a period in which a zone keeps one offset. All times are in seconds: instants since 1970 in UTC, and
// local times as if the local clock showed UTC.
type offsetPeriod struct {
	start, end int64 // instants; end is excluded
	offset     int64 // local = instant + offset
	before     int64 // the offset before start; in the first period equal to offset
}

// startsWithGap reports whether the clock jumped forward at the start of the period, so that the local times from
// start+before to start+offset do not exist.
func (o *offsetPeriod) startsWithGap() bool { return o.offset > o.before }

// startsWithFold reports whether the clock was set back at the start of the period, so that the local times from
// start+offset to start+before exist twice, the second time in this period.
func (o *offsetPeriod) startsWithFold() bool { return o.offset < o.before }

// zone is one entry of the database, divided into periods from 1970 to 2100. Periods are days longer than any
// jump of the clock (a test checks the whole database), so that each gap and each fold concerns only two neighbors.
type zone struct {
	location *time.Location
	periods  []offsetPeriod // adjacent, in order of time
}

// periodAt returns the index of the period that contains an instant of 1970 to 2100.
func (z *zone) periodAt(instant int64) int {
	lo, hi := 0, len(z.periods)
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if z.periods[mid].start <= instant {
			lo = mid
		} else {
			hi = mid
		}
	}

	return lo
}

// zoneFiles returns the files of the embedded database by name.
var zoneFiles = sync.OnceValues(func() (map[string]*zip.File, error) {
	r, err := zip.NewReader(strings.NewReader(zoneDatabase), int64(len(zoneDatabase)))
	if err != nil {
		return nil, fmt.Errorf("open the embedded time zones: %w", err)
	}

	files := make(map[string]*zip.File, len(r.File))
	for _, f := range r.File {
		if !strings.HasSuffix(f.Name, "/") {
			files[f.Name] = f
		}
	}

	return files, nil
})

// zoneCache holds every zone that was requested. There are about 600, of a few KB each at most.
var zoneCache struct {
	sync.RWMutex
	byName map[string]*zone
}

// findZone returns a zone by its exact IANA name; "" is UTC.
func findZone(name string) (*zone, error) {
	if name == "" {
		name = "UTC"
	}

	zoneCache.RLock()
	z := zoneCache.byName[name]
	zoneCache.RUnlock()

	if z != nil {
		return z, nil
	}

	z, err := loadZone(name)
	if err != nil {
		return nil, err
	}

	// Another goroutine may have loaded the zone meanwhile. Then use that one.
	zoneCache.Lock()
	defer zoneCache.Unlock()

	if have := zoneCache.byName[name]; have != nil {
		return have, nil
	}

	if zoneCache.byName == nil {
		zoneCache.byName = make(map[string]*zone)
	}

	zoneCache.byName[name] = z

	return z, nil
}

// loadZone reads a zone from the embedded database.
func loadZone(name string) (*zone, error) {
	files, err := zoneFiles()
	if err != nil {
		return nil, err
	}

	file := files[name]
	if file == nil {
		return nil, unknownZone(name, files)
	}

	r, err := file.Open()
	if err != nil {
		return nil, fmt.Errorf("open time zone %s: %w", name, err)
	}

	defer r.Close()

	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read time zone %s: %w", name, err)
	}

	location := time.UTC
	if name != "UTC" {
		if location, err = time.LoadLocationFromTZData(name, data); err != nil {
			return nil, fmt.Errorf("read time zone %s: %w", name, err)
		}
	}

	return &zone{location: location, periods: offsetPeriods(location)}, nil
}

// offsetPeriods returns the periods of a location. time.Time.ZoneBounds is only a hint: beyond the database's
// table, where a rule continues it, it also reports the ends of years, and on the last day of a leap year an end
// that is not later than the given time. So every bound is only a place to compare offsets, a day is the step where
// there is no bound, and the offsets alone decide.
func offsetPeriods(location *time.Location) []offsetPeriod {
	offset := func(instant int64) int64 {
		_, seconds := time.Unix(instant, 0).In(location).Zone()
		return int64(seconds)
	}

	// current is the offset at now. Each round advances to the next place to compare.
	now, current := firstSecond, offset(firstSecond)
	cuts := []offsetPeriod{{start: now, offset: current, before: current}}
	for now < endSecond {
		next := now + daySeconds

		if _, end := time.Unix(now, 0).In(location).ZoneBounds(); end.IsZero() {
			break
		} else if end.Unix() > now {
			next = end.Unix()
		}

		if offset(next) != current && next < endSecond {
			// The first second in (now, next] with another offset.
			n := sort.Search(int(next-now), func(i int) bool { return offset(now+1+int64(i)) != current })
			next = now + 1 + int64(n)
			cuts[len(cuts)-1].end = next
			cuts = append(cuts, offsetPeriod{start: next, offset: offset(next), before: current})
			current = offset(next)
		}

		now = next
	}

	cuts[len(cuts)-1].end = endSecond

	return append([]offsetPeriod(nil), cuts...)
}

// Location returns the time zone with an exact IANA name ("" is UTC) from the embedded database, to show ticks as
// Next computes them. The error is a *task.Error of the field "timezone".
func Location(timezone string) (*time.Location, error) {
	z, err := findZone(timezone)
	if err != nil {
		return nil, err
	}
	return z.location, nil
}

// Change is an instant at which a zone's clock is put forward or back. If it is put forward (From is less than To), the
// local times from From to To do not exist. Otherwise the local times from To to From exist twice.
type Change struct {
	At       time.Time // the first instant of the new offset, in UTC
	From, To string    // what the clock would have shown at that instant, and what it shows, as 2006-01-02 15:04:05
}

// localTime returns the instants at which the zone's clock shows a local time, which is given as if it were in UTC.
func (z *zone) localTime(local time.Time) Moment {
	m := Moment{Local: local.Format(clockLayout), seconds: local.Unix(), whole: local.Nanosecond() == 0}
	if !m.whole {
		m.Local = local.Format(millisLayout)
	}

	const apart = 2 * daySeconds // no clock differs from UTC by more than this
	for i := z.periodAt(m.seconds - apart); i < len(z.periods) && z.periods[i].start < m.seconds+apart; i++ {
		st := &z.periods[i]
		if at := m.seconds - st.offset; st.start <= at && at < st.end {
			m.Instants = append(m.Instants, local.Add(time.Duration(-st.offset)*time.Second))
		}

		if from, to := st.start+st.before, st.start+st.offset; min(from, to) <= m.seconds && m.seconds < max(from, to) {
			m.Change = st.clockChange()
		}
	}

	return m
}

// clockChange returns the change of the clock at the start of a period.
func (o *offsetPeriod) clockChange() *Change {
	show := func(local int64) string { return time.Unix(local, 0).UTC().Format(clockLayout) }
	return &Change{At: time.Unix(o.start, 0).UTC(), From: show(o.start + o.before), To: show(o.start + o.offset)}
}

// Reading describes an instant in relation to a schedule.
type Reading struct {
	Tick     bool      // the instant is a tick
	Previous time.Time // the last tick before it, in UTC; zero if there is none
	Next     time.Time // the first tick after it; zero if there is none
	Note     string    // of a tick: NoteGap, NoteFold or ""
	Change   *Change   // the gap that ends at the instant, or the fold in which it lies; nil if neither
}

// At describes an instant, truncated to milliseconds, in relation to the schedule. It concerns the times of ticks.
// Due returns when a tick is due.
func (s *Schedule) At(at time.Time) Reading {
	ms := clampToMS(at)
	last := s.previousTo(ms)
	r := Reading{Tick: last != noInstant && last == ms}
	if r.Tick {
		last = s.previousTo(ms - 1)
	}

	if last != noInstant {
		r.Previous = instantOf(last)
	}

	if next := s.nextAfter(ms); next != noInstant {
		r.Next = instantOf(next)
	}

	if r.Tick {
		r.Note = s.tickNote(instantOf(ms))
	}

	if second := ms / 1000; second >= firstSecond && second < endSecond {
		r.Change = s.plan.zone.changeOf(second, ms%1000 == 0)
	}

	return r
}

// changeOf returns the gap that ends at an instant, or the fold in which it lies, or nil.
func (z *zone) changeOf(at int64, whole bool) *Change {
	i := z.periodAt(at)
	st := &z.periods[i]
	if st.startsWithGap() && st.start == at && whole || z.isRepeated(i, at) {
		return st.clockChange()
	}
	if z.occursTwice(i, at) {
		return z.periods[i+1].clockChange()
	}

	return nil
}

// isRepeated reports whether the local time of an instant, in period i, has existed before.
func (z *zone) isRepeated(i int, at int64) bool {
	st := &z.periods[i]
	return st.startsWithFold() && at+st.offset < st.start+st.before
}

// occursTwice reports whether the local time of an instant, in period i, will exist again.
func (z *zone) occursTwice(i int, at int64) bool {
	if i+1 == len(z.periods) {
		return false
	}
	after := &z.periods[i+1]
	return after.startsWithFold() && at+z.periods[i].offset >= after.start+after.offset
}
