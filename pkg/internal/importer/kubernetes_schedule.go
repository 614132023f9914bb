package importer

import (
	"errors"
	"fmt"
	"math/bits"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// setSchedule converts the schedule and the time zone of a CronJob. Kubernetes evaluates them with robfig/cron,
// which interprets a few expressions differently from Carillon. So the expression is parsed with that library, and
// its bit sets are converted.
func (k *kubernetesJob) setSchedule(s *task.Spec, c cronJob) error {
	zone, text, err := kubernetesZone(c.Spec.Schedule, c.Spec.TimeZone)
	if err != nil {
		return err
	}

	if zone != "" {
		s.Timezone = zone
	} else {
		k.addNote("no time zone given: uses %s; Kubernetes uses the zone of its controller", s.Timezone)
	}

	parsed, err := cron.ParseStandard(text)
	if err != nil {
		return fmt.Errorf("Kubernetes rejects it: %w", err)
	}

	switch parsed := parsed.(type) {
	case cron.ConstantDelaySchedule:
		s.Schedule = task.Schedules{"@every " + task.Duration(parsed.Delay).String()}
		k.addNote("@every counts from when the task is imported, not from the creation of the CronJob")
		return nil

	case *cron.SpecSchedule:
		expr, err := kubernetesCron(text, parsed)
		if err != nil {
			return err
		}
		s.Schedule = task.Schedules{expr}

	default:
		return fmt.Errorf("%T is not supported", parsed)
	}

	return followRobfigClock(s, "Kubernetes", k.addNote)
}

// followRobfigClock sets what happens where the clock changes. robfig/cron matches what the local clock shows, whatever
// the hour field contains: it fires in both passes of a repeated hour, and not in a skipped hour.
func followRobfigClock(s *task.Spec, system string, addNote func(format string, args ...any)) error {
	location, err := schedule.Location(s.Timezone)
	if err != nil {
		return nil // addJob refuses the zone, and names its field
	}

	changes := clockChanges(location)
	if len(changes) > 0 {
		s.DST = task.DST{Gap: task.GapSkip, Fold: task.FoldBoth}
	}

	for _, change := range changes {
		if change.misleadsRobfig() {
			addNote("the clock of %s changes at midnight, or not by whole hours: %s may lose or misplace ticks on such days, and the task does not", s.Timezone, system)
			break
		}
	}

	return nil
}

// kubernetesZone returns the time zone in force, "" for that of the controller, and the schedule without it. As in
// the controller, a zone in the schedule has priority.
func kubernetesZone(text, field string) (zone, rest string, err error) {
	for _, prefix := range []string{"CRON_TZ=", "TZ="} {
		value, found := strings.CutPrefix(text, prefix)
		if !found {
			continue
		}

		zone, rest, found = strings.Cut(value, " ")
		if rest = strings.TrimSpace(rest); !found || strings.Contains(rest, "TZ=") {
			return "", "", fmt.Errorf("Kubernetes rejects it: no schedule after %s", quoteShort(prefix+zone))
		}

		if zone == "" {
			zone = "UTC"
		}

		return zone, rest, nil
	}

	if strings.Contains(text, "TZ=") {
		return "", "", errors.New("Kubernetes rejects TZ= at the beginning of a schedule")
	}

	return field, text, nil
}

// robfigStar is the bit with which robfig/cron marks a field that contains * or ?.
const robfigStar = 1 << 63

// kubernetesField matches the items that robfig/cron and Carillon interpret in the same way. Items that start with
// * are not among them: they affect the rule of the two day fields, in Carillon also as */2 and in robfig/cron only
// as *.
var kubernetesField = regexp.MustCompile(`^([0-9]{1,2}|[A-Za-z]{3})(-([0-9]{1,2}|[A-Za-z]{3}))?(/[0-9]{1,2})?$`)

// kubernetesCron returns an expression with the same ticks as robfig's bit sets. It keeps fields that have the same
// meaning in both.
func kubernetesCron(text string, sets *cron.SpecSchedule) (string, error) {
	if strings.HasPrefix(text, "@") {
		return text, nil
	}

	words := strings.Fields(text)
	for i, set := range []uint64{sets.Minute, sets.Hour, sets.Dom, sets.Month, sets.Dow} {
		var err error
		if words[i], err = robfigField(words[i], set, fieldNames[i], i); err != nil {
			return "", err
		}
	}

	return strings.Join(words, " "), nil
}

// robfigField returns a field with the values of a bit set. It keeps the field if it has the same meaning in both. i is the
// index of its bounds.
func robfigField(word string, set uint64, name string, i int) (string, error) {
	switch {
	case set == 0:
		return "", fmt.Errorf("never fires: %s %s has no value", name, quoteShort(word))
	case sameInBoth(word, i):
		return word, nil
	case set&robfigStar != 0:
		return "*", nil
	}

	return setOfField(set, i), nil
}

// sameInBoth reports whether robfig/cron and Carillon interpret a field in the same way.
func sameInBoth(word string, i int) bool {
	const dayOfMonth, dayOfWeek = 2, 4
	if period, ok := strings.CutPrefix(word, "*/"); ok && i != dayOfMonth && i != dayOfWeek {
		n, err := strconv.Atoi(period)
		return err == nil && n > 0 && n <= fieldBounds[i][1]
	}

	for item := range strings.SplitSeq(word, ",") {
		if !kubernetesField.MatchString(item) {
			return false
		}

		if _, period, stepped := strings.Cut(item, "/"); stepped {
			if n, err := strconv.Atoi(period); err != nil || n > fieldBounds[i][1] {
				return false
			}
		}
	}

	return true
}

// setOfField returns a bit set as a field: values and ranges, or one range with a step if that is enough.
func setOfField(set uint64, i int) string {
	set &^= robfigStar
	var list []int
	for rest := set; rest != 0; rest &= rest - 1 {
		list = append(list, bits.TrailingZeros64(rest))
	}

	// A range with a step, if the values have equal distances.
	if step, even := stepBetween(list); even && step > 1 {
		end := list[len(list)-1]
		if end+step > fieldBounds[i][1] {
			end = fieldBounds[i][1]
		}
		return fmt.Sprintf("%d-%d/%d", list[0], end, step)
	}

	// Otherwise single values and ranges.
	var items []string
	for n := 0; n < len(list); {
		last := n
		for last+1 < len(list) && list[last+1] == list[last]+1 {
			last++
		}

		if item := strconv.Itoa(list[n]); last > n {
			items = append(items, fmt.Sprintf("%s-%d", item, list[last]))
		} else {
			items = append(items, item)
		}

		n = last + 1
	}

	return strings.Join(items, ",")
}

// stepBetween returns the step between at least three values, if it is constant.
func stepBetween(list []int) (step int, even bool) {
	if len(list) < 3 {
		return 0, false
	}

	step = list[1] - list[0]

	for n := 2; n < len(list); n++ {
		if list[n]-list[n-1] != step {
			return 0, false
		}
	}

	return step, true
}

// clockChange is a change of a zone's offset from UTC. It holds what the local clock shows before and after it, in
// seconds.
type clockChange struct{ before, after int64 }

// clockChanges returns the changes of a zone's clock in the years 2025 to 2037, in which the rules of all zones
// repeat.
func clockChanges(location *time.Location) []clockChange {
	offset := func(at int64) int64 {
		_, seconds := time.Unix(at, 0).In(location).Zone()
		return int64(seconds)
	}

	const day = 24 * 3600
	start := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	end := time.Date(2038, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	var changes []clockChange
	for at := start; at < end; at += day {
		before, after := offset(at), offset(at+day)
		if before == after {
			continue
		}

		changed := at + int64(sort.Search(day, func(n int) bool { return offset(at+int64(n)) != before }))
		changes = append(changes, clockChange{changed + before, changed + after})
	}

	return changes
}

// misleadsRobfig reports whether robfig/cron's search fails around the change. It advances by hours and by days,
// and expects to reach full hours and midnight.
func (c clockChange) misleadsRobfig() bool {
	const hour, day = 3600, 24 * 3600
	from, to := min(c.before, c.after), max(c.before, c.after)
	midnight := (to - 1) / day * day
	return (to-from)%hour != 0 || midnight >= from
}
