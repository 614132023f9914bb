package schedule

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Moment is a time as a person wrote it: a local time of a zone, and the instants at which a clock shows it.
type Moment struct {
	Text     string        // what was written; a text that is relative to now is replaced by the local time that it means
	Grain    time.Duration // the precision of the text: a day, a minute, a second or a millisecond
	Local    string        // as 2006-01-02 15:04:05, with milliseconds if it has any
	Instants []time.Time   // in UTC, ascending: one, or none in a gap, or two in a fold
	Change   *Change       // the gap or the fold that it lies in, or nil

	seconds int64 // of the local clock, as if it showed UTC
	whole   bool  // it has no milliseconds
}

// Direction says what a text without a date means.
type Direction int8

// The directions. A duration, such as 2h, is that long ago if the direction is Past, and that far ahead otherwise.
const (
	Nearest Direction = iota // a time of day is that of today, a weekday one within the last day or the next six days
	Past                     // the last time before now at which a clock showed it
	Future                   // the next time after now
)

// TimeBase is what a text about a time is read in relation to.
type TimeBase struct {
	Now       time.Time      // zero: texts that are relative to now are refused
	Zone      *time.Location // of texts without an offset; nil is UTC
	Direction Direction
}

// maxTimeText limits what is read as a time.
const maxTimeText = 80

const (
	oneDay       = 24 * time.Hour
	clockLayout  = "2006-01-02 15:04:05"
	millisLayout = "2006-01-02 15:04:05.000"
)

var (
	clockPattern = regexp.MustCompile(`^(\d{1,2}):(\d\d)(?::(\d\d)(\.\d{1,9})?)?([Zz]|[+-]\d\d(?::?\d\d)?)?$`)
	zoneOffset   = regexp.MustCompile(`^([+-])(\d\d)(?::?(\d\d))?$`)
	datePattern  = regexp.MustCompile(`^\d{4}-\d\d-\d\d$`)
	namePattern  = regexp.MustCompile(`^[A-Za-z]{2,6}$`)
)

// ReadMoment parses a time as people write it. It is the only parser of such texts, for flags, files, parameters of the API
// and the Web UI, and it accepts all times that the command line prints:
//
//   - a duration, such as 90s or 2d12h, and "2h ago", "in 2h" and "now"
//   - a time of day, alone or after yesterday, today, tomorrow or a weekday
//   - a date, such as 2026-12-24, 24 Dec or Thu 24 Dec 2026, with or without a time of day; a date means its first instant
//   - RFC 3339, with a T or a space
//
// A time of day can end with an offset, with UTC, or with the name that the zone's own clock has then, such as CEST. The last
// two, as an offset, tell the two instants of a fold apart. The time must be in the years 2000 to 2100.
//
// The error is a *task.Error without a field.
func ReadMoment(text string, base TimeBase) (Moment, error) {
	if base.Zone == nil {
		base.Zone = time.UTC
	}

	words := strings.Fields(text)
	if len(words) == 0 || len(text) > maxTimeText {
		return Moment{}, base.notTime(text)
	}

	if m, ok, err := base.readDistance(words); ok || err != nil {
		return m, err
	}

	return base.readDated(text, words)
}

// ReadInstant is ReadMoment for a time that must be exactly one instant. Of a date, it returns the first instant.
func ReadInstant(text string, base TimeBase) (time.Time, error) {
	m, err := ReadMoment(text, base)
	if err != nil {
		return time.Time{}, err
	}

	switch len(m.Instants) {
	case 1:
		return m.Instants[0], nil
	case 0:
		return time.Time{}, task.Invalid(task.CodeBadTime, "", "%s does not exist in %s: the clocks go from %s to %s then", task.Quote(text), zoneName(base.Zone), m.Change.From[11:16], m.Change.To[11:16])
	}

	first, second := m.Instants[0].In(base.Zone), m.Instants[1].In(base.Zone)

	return time.Time{}, task.Invalid(task.CodeBadTime, "", "%s exists twice in %s: write %s or %s", task.Quote(text), zoneName(base.Zone), first.Format(time.RFC3339), second.Format(time.RFC3339))
}

// isTimeText reports whether words have the form of a time. Whether the time exists is not known without its zone.
func isTimeText(words []string) bool {
	b := TimeBase{Now: time.Unix(firstWritten+daySeconds, 0), Zone: time.UTC, Direction: Future}
	text := strings.Join(words, " ")
	if len(text) > maxTimeText {
		return false
	}

	_, isDistance, err := b.readDistance(words)
	_, isCivil := b.readCivil(words)

	return err == nil && (isDistance || isCivil)
}

// readDistance parses now, and durations from now.
func (b TimeBase) readDistance(words []string) (m Moment, ok bool, err error) {
	back := b.Direction == Past
	rest := words

	switch n := len(words); {
	case n == 1 && strings.EqualFold(words[0], "now"):
		rest = []string{"0s"}
	case n > 1 && strings.EqualFold(words[n-1], "ago"):
		rest, back = words[:n-1], true
	case n > 1 && strings.EqualFold(words[0], "in"):
		rest, back = words[1:], false
	}

	text := strings.Join(words, " ")
	d, err := task.ParseDuration("", strings.Join(rest, " "))
	switch {
	case err != nil && len(rest) < len(words):
		return m, false, b.notTime(text)
	case err != nil:
		return m, false, nil
	case d < 0 || strings.HasPrefix(rest[0], "+"):
		return m, false, b.notTime(text)
	case b.Now.IsZero():
		return m, false, relativeError(text)
	case back:
		d = -d
	}

	at := b.Now.Add(d.Std())
	if s := at.Unix(); s < firstWritten || s >= endSecond {
		return m, false, yearsError(text)
	}

	m = b.momentOf(at)
	m.Text, m.Grain = b.exactText(m), time.Millisecond

	return m, true, nil
}

// exactText returns the instant of a moment with its offset, so that it is one instant in a fold, too.
func (b TimeBase) exactText(m Moment) string {
	return m.Instants[0].In(b.Zone).Format("2006-01-02T15:04:05.999Z07:00")
}

// momentOf returns the moment of an instant, truncated to milliseconds.
func (b TimeBase) momentOf(at time.Time) Moment {
	at = at.UTC().Truncate(time.Millisecond)
	_, offset := at.In(b.Zone).Zone()
	m := zoneOf(b.Zone).localTime(at.Add(time.Duration(offset) * time.Second))
	m.Instants = []time.Time{at}

	return m
}

// civil is a text about a time, divided into its parts. day is midnight of its date, as if it were in UTC.
type civil struct {
	day      time.Time
	hasDay   bool
	relative bool          // the date depends on now
	weekday  time.Weekday  // -1: not given; without a date, it selects one
	clock    time.Duration // since midnight
	grain    time.Duration
	suffix   string // the zone: "", Z, an offset or a name
}

// readDated parses texts about dates and times of day.
func (b TimeBase) readDated(text string, words []string) (Moment, error) {
	c, ok := b.readCivil(words)
	if !ok {
		return Moment{}, b.notTime(text)
	}
	if c.relative && b.Now.IsZero() {
		return Moment{}, relativeError(text)
	}
	if c.hasDay && c.weekday >= 0 && c.day.Weekday() != c.weekday {
		return Moment{}, task.Invalid(task.CodeBadTime, "", "%s: %s is a %s", task.Quote(text), c.day.Format("2 January 2006"), c.day.Weekday())
	}

	// An offset or UTC selects a clock. Any other name is that of the zone's own clock, such as CEST.
	z, name := zoneOf(b.Zone), c.suffix
	if own, isOffset := offsetZone(c.suffix); isOffset {
		z, name = own, ""
	}

	var m Moment
	for _, day := range b.daysOf(&c, z) {
		local := day.Add(c.clock)
		if s := local.Unix(); s < firstWritten || s >= endSecond {
			return Moment{}, yearsError(text)
		}
		if m = z.localTime(local); b.isChosen(&c, m.first()) {
			break
		}
	}

	if name != "" {
		if m.Instants = slices.DeleteFunc(m.Instants, func(at time.Time) bool { return at.In(b.Zone).Format("MST") != name }); len(m.Instants) == 0 {
			return Moment{}, task.Invalid(task.CodeBadTime, "", "%s: the clock in %s is not called %s then; write an offset such as +02:00, or Z for UTC",
				task.Quote(text), zoneName(b.Zone), task.Quote(name))
		}
	} else if c.suffix != "" { // an instant, whose local time determines whether it lies in a gap or a fold
		m = b.momentOf(m.Instants[0])
	}

	// If midnight does not exist on a day, the day begins after the gap. If it exists twice, with the first one.
	if m.Grain = c.grain; c.grain == oneDay {
		m.Instants = []time.Time{m.first()}
	}

	switch m.Text = strings.Join(words, " "); {
	case c.relative && c.suffix != "": // an instant, also in a fold
		m.Text = b.exactText(m)
	case c.relative && c.grain == oneDay:
		m.Text = m.Local[:len("2006-01-02")]
	case c.relative:
		m.Text = m.Local
	}

	return m, nil
}

// first returns the first instant of the moment or, in a gap, the instant at which the gap ends.
func (m *Moment) first() time.Time {
	if len(m.Instants) == 0 {
		return m.Change.At
	}
	return m.Instants[0]
}

// daysOf returns the days that the text may mean, the preferred one first.
func (b TimeBase) daysOf(c *civil, z *zone) []time.Time {
	if c.hasDay {
		return []time.Time{c.day}
	}

	today := midnight(b.Now.In(z.location))
	at := func(days int) time.Time { return today.AddDate(0, 0, days) }

	if c.weekday >= 0 {
		next := at((int(c.weekday-today.Weekday()) + 7) % 7) // in the next seven days, beginning with today
		last := next.AddDate(0, 0, -7)
		switch {
		case b.Direction == Past:
			return []time.Time{next, last}
		case b.Direction == Future:
			return []time.Time{next, next.AddDate(0, 0, 7)}
		}
		return []time.Time{last, next}
	}

	switch b.Direction {
	case Past:
		return []time.Time{today, at(-1)}
	case Future:
		return []time.Time{today, at(1)}
	}

	return []time.Time{today}
}

// isChosen reports whether an instant is the one that a text without a date means.
func (b TimeBase) isChosen(c *civil, at time.Time) bool {
	switch {
	case c.hasDay:
		return true
	case b.Direction == Past:
		return !at.After(b.Now)
	case b.Direction == Future:
		return at.After(b.Now)
	case c.weekday >= 0:
		return at.After(b.Now.Add(-oneDay))
	}

	return true
}

// readCivil divides a text into its parts.
func (b TimeBase) readCivil(words []string) (c civil, ok bool) {
	c.weekday, c.grain = -1, oneDay

	// RFC 3339 has a T between the date and the time.
	if w := words[0]; len(w) > 10 && (w[10] == 'T' || w[10] == 't') && datePattern.MatchString(w[:10]) {
		words = append([]string{w[:10], w[11:]}, words[1:]...)
	}

	if day, isName := weekdayOf(words[0]); isName {
		c.weekday, c.relative, words = day, true, words[1:]
	}

	words, ok = b.readDate(&c, words)
	if !ok {
		return c, false
	}
	if len(words) == 0 {
		return c, c.hasDay
	}

	m := clockPattern.FindStringSubmatch(words[0])
	if m == nil || len(words) > 2 || len(words) == 2 && m[5] != "" {
		return c, false
	}

	number := func(text string) time.Duration { n, _ := strconv.Atoi("0" + text); return time.Duration(n) }
	hour, minute, second := number(m[1]), number(m[2]), number(m[3])
	if hour > 23 || minute > 59 || second > 59 {
		return c, false
	}

	c.clock = hour*time.Hour + minute*time.Minute + second*time.Second + number((strings.TrimPrefix(m[4], ".") + "000")[:3])*time.Millisecond
	c.relative = c.relative || !c.hasDay

	switch c.grain = time.Minute; {
	case m[4] != "":
		c.grain = time.Millisecond
	case m[3] != "":
		c.grain = time.Second
	}

	if c.suffix = m[5]; len(words) == 2 {
		c.suffix = words[1]
	}
	_, isOffset := offsetZone(c.suffix)

	return c, c.suffix == "" || isOffset || namePattern.MatchString(c.suffix)
}

// readDate reads the date at the beginning of words, if there is one, and returns the words after it.
func (b TimeBase) readDate(c *civil, words []string) (rest []string, ok bool) {
	if len(words) == 0 {
		return nil, false // a weekday alone
	}

	if days, isWord := dayWords[strings.ToLower(words[0])]; isWord {
		if c.weekday >= 0 {
			return nil, false
		}
		c.hasDay, c.relative = true, true
		c.day = midnight(b.Now.In(b.Zone)).AddDate(0, 0, days)
		return words[1:], true
	}

	if datePattern.MatchString(words[0]) {
		day, err := time.Parse(time.DateOnly, words[0])
		c.day, c.hasDay, c.relative = day, true, false
		return words[1:], err == nil
	}

	// 24 Dec, with or without the year.
	if len(words) < 2 || strings.ContainsRune(words[0], ':') {
		return words, true
	}

	layout, text, n := "2 Jan 2006", words[0]+" "+words[1], 2
	if len(words) > 2 && len(words[2]) == 4 && !strings.ContainsRune(words[2], ':') {
		text, n, c.relative = text+" "+words[2], 3, false
	} else {
		text, c.relative = text+" "+fmt.Sprintf("%04d", b.Now.In(b.Zone).Year()), true
	}

	day, err := time.Parse(layout, text)
	c.day, c.hasDay = day, true

	return words[n:], err == nil
}

// dayWords are the words for dates, as days after today.
var dayWords = map[string]int{"yesterday": -1, "today": 0, "tomorrow": 1}

// weekdayOf returns the weekday that a word names: Mon or Monday.
func weekdayOf(word string) (time.Weekday, bool) {
	for day := time.Sunday; day <= time.Saturday; day++ {
		if name := day.String(); strings.EqualFold(word, name) || strings.EqualFold(word, name[:3]) {
			return day, true
		}
	}

	return 0, false
}

// midnight returns the date that a clock shows, as if it were in UTC.
func midnight(local time.Time) time.Time {
	year, month, day := local.Date()
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// offsetZone returns the zone of a suffix such as Z, UTC, +02:00 or -03.
func offsetZone(suffix string) (*zone, bool) {
	if strings.EqualFold(suffix, "Z") || strings.EqualFold(suffix, "UTC") {
		z, err := findZone("UTC")
		return z, err == nil
	}

	m := zoneOffset.FindStringSubmatch(suffix)
	if m == nil {
		return nil, false
	}

	hours, _ := strconv.Atoi(m[2])
	minutes, _ := strconv.Atoi("0" + m[3])
	if hours > 23 || minutes > 59 {
		return nil, false
	}

	offset := hours*3600 + minutes*60
	if m[1] == "-" {
		offset = -offset
	}

	return zoneAt(offset), true
}

// zoneAt returns a zone with one offset.
func zoneAt(offset int) *zone {
	return &zone{
		location: time.FixedZone("", offset),
		periods:  []offsetPeriod{{start: firstSecond, end: endSecond, offset: int64(offset), before: int64(offset)}},
	}
}

// localZone is the zone of this process.
var localZone = sync.OnceValue(func() *zone { return &zone{location: time.Local, periods: offsetPeriods(time.Local)} })

// zoneOf returns the zone of a location.
func zoneOf(location *time.Location) *zone {
	if location == time.Local {
		return localZone()
	}
	if z, err := findZone(location.String()); err == nil && z.location == location {
		return z
	}

	return &zone{location: location, periods: offsetPeriods(location)}
}

// zoneName returns what messages call a zone.
func zoneName(location *time.Location) string {
	if location == time.Local {
		return "your time zone"
	}
	return location.String()
}

// notTime is the error about a text that is not a time. It says in which zone local times are.
func (b TimeBase) notTime(text string) error {
	if meant, ok := task.MeantDuration(strings.TrimSuffix(strings.TrimSpace(text), " ago")); ok && !b.Now.IsZero() {
		return task.Invalid(task.CodeBadTime, "", "%s is not a time; did you mean %q?", task.Quote(text), meant)
	}
	if b.Now.IsZero() {
		return task.Invalid(task.CodeBadTime, "", "%s is not a time, such as 2026-12-24, 2026-12-24 18:00 (in %s) or 2026-12-24T18:00:00Z", task.Quote(text), zoneName(b.Zone))
	}

	return task.Invalid(task.CodeBadTime, "", "%s is not a time, such as 2h, 2d12h, 18:00, yesterday 18:00, 2026-12-24 18:00 (in %s) or 2026-12-24T18:00:00Z", task.Quote(text), zoneName(b.Zone))
}

func relativeError(text string) error {
	return task.Invalid(task.CodeBadTime, "", "%s depends on when it is read; write a date, such as 2026-12-24 18:00", task.Quote(text))
}

func yearsError(text string) error {
	return task.Invalid(task.CodeBadTime, "", "%s is not in the years 2000 to 2100", task.Quote(text))
}
