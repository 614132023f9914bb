package importer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/carillonhq/carillon/pkg/task"
)

// dkronCronParser parses the cron expressions of Dkron, which always have seconds.
var dkronCronParser = cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// setSchedule converts the schedule and the time zone. Dkron evaluates them with robfig/cron.
func (d *dkronConversion) setSchedule(s *task.Spec) error {
	switch at, once := strings.CutPrefix(d.Schedule, "@at "); {
	case d.Schedule == "":
		return errors.New("a job without a schedule never runs")
	case d.Schedule == "@manually":
		s.Schedule = task.Schedules{"@manual"}
		return nil
	case once:
		if _, err := time.Parse(time.RFC3339, at); err != nil {
			return errors.New("Dkron rejects it: not a time in RFC 3339")
		}
		s.Schedule = task.Schedules{"@at " + at}
		return nil
	}

	zone, text, err := dkronZone(d.resolveTildes())
	if err != nil {
		return err
	}

	// Dkron does not apply the time zone of a job to a schedule such as @daily, or to one with a zone of its own.
	isDescriptor := strings.HasPrefix(text, "@")
	if zone == "" && !isDescriptor {
		zone = d.Timezone
	}
	if text == "@minutely" && zone == "" {
		text = "0 * * * * *"
	}

	parsed, err := dkronCronParser.Parse(text)
	if err != nil {
		return fmt.Errorf("Dkron rejects it: %w", err)
	}

	switch parsed := parsed.(type) {
	case cron.ConstantDelaySchedule:
		s.Schedule = task.Schedules{"@every " + task.Duration(parsed.Delay).String()}
		d.addNote("@every counts from when the task is imported, not from when Dkron started")
		return nil

	case *cron.SpecSchedule:
		expr, err := dkronCron(text, parsed)
		if err != nil {
			return err
		}
		s.Schedule = task.Schedules{expr}

	default:
		return fmt.Errorf("%T is not supported", parsed)
	}

	switch {
	case zone != "":
		s.Timezone = zone
	case d.Timezone != "":
		d.addNote("Dkron ignores its time zone %s, because of %s: uses %s; Dkron uses the zone of its servers", d.Timezone, d.Schedule, s.Timezone)
	default:
		d.addNote("no time zone given: uses %s; Dkron uses the zone of its servers", s.Timezone)
	}

	return followRobfigClock(s, "Dkron", d.addNote)
}

// dkronZone returns the time zone at the beginning of a schedule, or "", and the schedule without it.
func dkronZone(text string) (zone, rest string, err error) {
	for _, prefix := range []string{"CRON_TZ=", "TZ="} {
		value, found := strings.CutPrefix(text, prefix)
		if !found {
			continue
		}

		zone, rest, found = strings.Cut(value, " ")
		if rest = strings.TrimSpace(rest); !found {
			return "", "", fmt.Errorf("Dkron rejects it: no schedule after %s", quoteShort(prefix+zone))
		}
		if zone == "" {
			zone = "UTC"
		}

		return zone, rest, nil
	}

	return "", text, nil
}

// dkronTildeRanges are the numbers of values of each field from which Dkron chooses one for ~, and the first of them.
var dkronTildeRanges = [6]struct{ values, first int }{{60, 0}, {60, 0}, {24, 0}, {28, 1}, {12, 1}, {7, 0}}

// resolveTildes returns the schedule with a number for each ~, as Dkron derives it from the name of the job: the sum of its
// characters, modulo the values of the field.
func (d *dkronConversion) resolveTildes() string {
	if !strings.Contains(d.Schedule, "~") {
		return d.Schedule
	}

	sum := 0
	for _, c := range d.Name {
		sum += int(c)
	}

	words := strings.Split(d.Schedule, " ") // two spaces in a row count as a field, as in Dkron
	field := 0
	for i, word := range words {
		switch {
		case strings.HasPrefix(word, "@"):
			return d.Schedule
		case strings.HasPrefix(word, "TZ="), strings.HasPrefix(word, "CRON_TZ="):
			continue
		}

		of := dkronTildeRanges[0]
		if field < len(dkronTildeRanges) {
			of = dkronTildeRanges[field]
		}
		words[i] = strings.ReplaceAll(word, "~", strconv.Itoa(sum%of.values+of.first))
		field++
	}

	resolved := strings.Join(words, " ")
	d.addNote("~ in the schedule becomes what Dkron derives from the job's name: %s", resolved)

	return resolved
}

// dkronCron returns an expression with the same ticks as robfig's bit sets. Without seconds, it has five fields.
func dkronCron(text string, sets *cron.SpecSchedule) (string, error) {
	if strings.HasPrefix(text, "@") {
		return text, nil
	}

	second, rest, _ := strings.Cut(strings.Join(strings.Fields(text), " "), " ")
	expr, err := kubernetesCron(rest, sets)
	if err != nil {
		return "", err
	}

	if second, err = robfigField(second, sets.Second, "the second", 0); err != nil {
		return "", err
	}
	if n, err := strconv.Atoi(second); err == nil && n == 0 {
		return expr, nil
	}

	return second + " " + expr, nil
}
