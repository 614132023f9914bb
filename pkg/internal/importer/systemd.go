package importer

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Systemd makes tasks of timers and of the services that they start, which are looked
// up among the units by their names. Units without a timer are passed by. Drop-ins are
// not known: give what systemctl cat says.
//
// Ticks that were missed run only with Persistent=, and a service does not run twice at
// once. A service's user is root unless it says otherwise.
func Systemd(units []Unit, o Options) Result {
	var r Result

	for _, u := range units {
		if strings.HasSuffix(u.File, ".timer") {
			t := &timer{unit: u, job: Job{Place: Place{File: u.File}}}
			if err := t.readUnits(units, o); err != nil {
				r.addRefusal(t.job.Place, "%v", err)
				continue
			}

			r.addJob(t.job)
		}
	}

	return r
}

// timer is a timer while it is read.
type timer struct {
	unit Unit
	job  Job
}

func (t *timer) addNote(format string, args ...any) {
	t.job.Notes = append(t.job.Notes, fmt.Sprintf(format, args...))
}

func (t *timer) readUnits(units []Unit, o Options) error {
	base := strings.TrimSuffix(path.Base(t.unit.File), ".timer")
	if strings.HasSuffix(base, "@") {
		return fmt.Errorf("is a template: its instances have what it lacks")
	}

	s := o.newSpec("systemd", path.Base(t.unit.File))
	s.Name = joinName(makeSlug(o.Prefix), clipSlug(base, 100))
	s.Description = makeDescription(t.unit.lastValue("Unit", "Description"))
	if err := t.setSchedule(&s); err != nil {
		return err
	}

	service := t.unit.lastValue("Timer", "Unit")
	if service == "" {
		service = base + ".service"
	}

	i := slices.IndexFunc(units, func(u Unit) bool { return path.Base(u.File) == service })
	if i < 0 && strings.Contains(service, "@") { // an instance of a template
		template := service[:strings.Index(service, "@")+1] + ".service"
		i = slices.IndexFunc(units, func(u Unit) bool { return path.Base(u.File) == template })
	}

	if !strings.HasSuffix(service, ".service") || i < 0 {
		return fmt.Errorf("it starts %s, which is not among the units that were given", service)
	}

	if names := t.unit.unknownSettings("Timer", timerKeys...); len(names) > 0 {
		t.addNote("without counterpart in the timer: %s", strings.Join(names, ", "))
	}

	if err := t.readService(&s, units[i], service); err != nil {
		return fmt.Errorf("%s: %w", service, err)
	}

	t.job.Spec = s

	return nil
}

// timerKeys are those that are taken, or that make no difference.
var timerKeys = strings.Fields(`OnCalendar OnBootSec OnStartupSec OnActiveSec OnUnitActiveSec OnUnitInactiveSec Persistent RandomizedDelaySec
	FixedRandomDelay AccuracySec Unit RemainAfterElapse`)

func (t *timer) setSchedule(s *task.Spec) error {
	zone, all := "", task.Schedules{}
	for i, event := range t.unit.allValues("Timer", "OnCalendar") {
		if i == 0 {
			t.job.Line = event.line
		}

		expr, z, err := Calendar(event.value)
		if err != nil {
			t.job.Line = event.line
			return fmt.Errorf("OnCalendar=%s: %w", event.value, err)
		}

		if i > 0 && z != zone {
			return fmt.Errorf("OnCalendar= has several time zones, and a task has one")
		}

		zone = z
		all = append(all, expr)
	}

	if zone != "" {
		s.Timezone = zone
	}

	if location, err := schedule.Location(s.Timezone); err == nil && len(all) > 0 && len(clockChanges(location)) > 0 {
		// systemd skips a local time that does not exist, and elapses once at one that
		// comes twice, even where the hour is *. An hour field that starts with * knows
		// no such policy in Carillon, and 0-23 does.
		s.DST = task.DST{Gap: task.GapSkip, Fold: task.FoldFirst}

		for i, expr := range all {
			fields := strings.Fields(expr)
			if hour := len(fields) - 4; fields[hour] == "*" {
				fields[hour] = "0-23"
				all[i] = strings.Join(fields, " ")
			}
		}
	}

	for _, after := range []struct{ key, form string }{{"OnUnitActiveSec", "@every %s"}, {"OnUnitInactiveSec", "@every %s after completion"}} {
		for _, v := range t.unit.allValues("Timer", after.key) {
			period, err := parseTimespan(v.value)
			if err != nil || period <= 0 {
				t.job.Line = v.line
				return fmt.Errorf("%s=%s: is no period", after.key, v.value)
			}

			all = append(all, fmt.Sprintf(after.form, task.Duration(period)))
			t.addNote("%s counts from when the task is imported, not from a boot", after.key)

			if t.job.Line == 0 {
				t.job.Line = v.line
			}
		}
	}

	for _, key := range []string{"OnBootSec", "OnStartupSec", "OnActiveSec"} {
		for _, v := range t.unit.allValues("Timer", key) {
			if len(all) == 0 {
				t.job.Line = v.line
				return fmt.Errorf("%s has no counterpart: a task has times, and no boots", key)
			}
			t.addNote("%s=%s has no counterpart: nothing runs because of a boot", key, v.value)
		}
	}

	if len(all) == 0 {
		return fmt.Errorf("the timer has no time")
	}

	s.Schedule = slices.Compact(all)
	s.Missed.Policy = task.MissedSkip
	if t.unit.boolValue("Timer", "Persistent") {
		s.Missed.Policy, s.Missed.Window = task.MissedLatest, maxCatchUp
	}

	if v := t.unit.lastValue("Timer", "RandomizedDelaySec"); v != "" {
		delay, err := parseTimespan(v)
		if err != nil {
			return fmt.Errorf("RandomizedDelaySec=%s: %w", v, err)
		}

		if d := task.Duration(delay.Truncate(time.Millisecond)); d > task.MaxJitter {
			t.addNote("RandomizedDelaySec=%s is cut to %s", v, task.MaxJitter)
			s.Jitter = task.MaxJitter
		} else {
			s.Jitter = d
		}
	}

	return nil
}
