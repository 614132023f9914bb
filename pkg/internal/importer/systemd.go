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

// Systemd converts timers and the services that they start, which it finds among the units by their names. It skips
// units without a timer. It reads no drop-ins, except in the output of systemctl cat, and adds a note about the others.
//
// Missed ticks run only with Persistent=, and runs of a service do not overlap. The user of a service is root by
// default, and the units of a user run as that user.
func Systemd(units []Unit, o Options) Result {
	var r Result
	var services []startedService // of r.Jobs, in their order

	for _, u := range units {
		if strings.HasSuffix(u.File, ".timer") {
			t := &timer{unit: u, job: Job{Place: Place{File: u.File}}}
			if err := t.readUnits(units, o); err != nil {
				r.addRefusal(t.job.Place, "%v", err)
				continue
			}

			var one Result
			one.addJob(t.job)
			if r.Join(one); len(r.Jobs) > len(services) {
				services = append(services, t.service)
			}
		}
	}

	noteSharedServices(r.Jobs, services)

	return r
}

// startedService identifies the service that a timer starts. Its file may be that of a template.
type startedService struct{ file, name string }

// noteSharedServices adds a note to the jobs whose timers start the same service.
func noteSharedServices(jobs []Job, services []startedService) {
	timers := map[startedService][]string{}
	for i, j := range jobs {
		timers[services[i]] = append(timers[services[i]], j.File)
	}

	for i := range jobs {
		if shared := services[i]; len(timers[shared]) > 1 {
			jobs[i].Notes = append(jobs[i].Notes, fmt.Sprintf("%s start %s, which systemd never runs twice at once; the runs of their tasks may overlap",
				strings.Join(timers[shared], " and "), shared.name))
		}
	}
}

// timer holds the state while a timer is read.
type timer struct {
	expander
	unit    Unit
	job     Job
	service startedService
	ignored []string // settings without effect on a task
}

func (t *timer) addNote(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(t.job.Notes, text) {
		t.job.Notes = append(t.job.Notes, text)
	}
}

// describe returns the description of a unit.
func (e expander) describe(u Unit) string {
	text := u.lastValue("Unit", "Description")
	if expanded, err := e.expandSpecifiers(text); err == nil {
		text = expanded
	}

	return makeDescription(text)
}

// readUnits converts the timer and its service.
func (t *timer) readUnits(units []Unit, o Options) error {
	base := strings.TrimSuffix(path.Base(t.unit.File), ".timer")
	if strings.HasSuffix(base, "@") {
		return fmt.Errorf("is a template: import its instances, which are links in timers.target.wants, or a copy with the name of an instance, such as %sx.timer", base)
	}

	scope, err := scopeOf(t.unit, o)
	if err != nil {
		return err
	}

	s := o.newSpec("systemd", path.Base(t.unit.File))
	s.Name = joinName(makeSlug(o.Prefix), clipSlug(scope.user, 20), clipSlug(base, 80))
	t.job.Spec.Name = s.Name
	t.expander = expander{unitName: path.Base(t.unit.File), scope: scope}
	if o.Node == "" && o.Host != "" {
		t.host = o.Hostname
	}

	s.Description = t.describe(t.unit)
	if err := t.setSchedule(&s); err != nil {
		return err
	}
	t.noteLongDelay(s)

	// The service has the same name by default.
	service := t.unit.lastValue("Timer", "Unit")
	if service == "" {
		service = base + ".service"
	}
	if service, err = t.expandSpecifiers(service); err != nil {
		return fmt.Errorf("setting Unit: %w", err)
	}
	if strings.HasSuffix(service, "@.service") {
		return fmt.Errorf("starts %s, which is a template: name one of its instances", service)
	}

	i := findUnit(units, service, t.unit, o)
	if i < 0 && strings.Contains(service, "@") { // an instance of a template
		i = findUnit(units, service[:strings.Index(service, "@")+1]+".service", t.unit, o)
	}

	if !strings.HasSuffix(service, ".service") || i < 0 {
		return fmt.Errorf("starts %s, which is not among the given units", service)
	}

	t.service = startedService{units[i].origin(), service}

	if dropIns := slices.Concat(t.unit.DropIns, units[i].DropIns); len(dropIns) > 0 {
		t.addNote("drop-ins that are not read: %s; to include them, import the output of systemctl cat %s %s",
			strings.Join(dropIns, ", "), path.Base(t.unit.File), service)
	}

	t.noteSettings()
	if err := t.readService(&s, units[i], service); err != nil {
		return fmt.Errorf("%s: %w", service, err)
	}

	if len(t.ignored) > 0 {
		slices.Sort(t.ignored)
		t.addNote("settings without effect on a task: %s", strings.Join(slices.Compact(t.ignored), ", "))
	}

	t.job.Spec = s

	return nil
}

// The settings of a timer: those that are converted or have a note of their own, and those without effect on a task.
var (
	convertedInTimer = strings.Fields(`OnCalendar OnBootSec OnStartupSec OnActiveSec OnUnitActiveSec OnUnitInactiveSec Persistent
	RandomizedDelaySec FixedRandomDelay DeferReactivation Unit`)
	ignoredInTimer = strings.Fields("AccuracySec RemainAfterElapse")
)

// noteSettings adds notes about the settings of the timer that have no counterpart.
func (t *timer) noteSettings() {
	var lost []string
	for _, key := range t.unit.settingNames("Timer") {
		switch {
		case slices.Contains(ignoredInTimer, key):
			t.ignored = append(t.ignored, key)
		case !slices.Contains(convertedInTimer, key):
			lost = append(lost, key)
		}
	}

	if len(lost) > 0 {
		t.addNote("settings of the timer that a task does not have: %s", strings.Join(lost, ", "))
	}

	t.noteUnitSection(t.unit, t.expander)
}

// settingsOfTimes are the settings of a timer that determine its ticks.
var settingsOfTimes = strings.Fields("OnCalendar OnActiveSec OnBootSec OnStartupSec OnUnitActiveSec OnUnitInactiveSec")

// timesOf returns the values of settings that determine the ticks. An empty value of any of them discards all of them, as
// in drop-ins that replace a timer's schedule.
func (t *timer) timesOf(keys ...string) (list []setting) {
	for _, s := range t.unit.settings {
		switch {
		case s.section != "Timer" || !slices.Contains(settingsOfTimes, s.key):
		case s.value == "":
			list = nil
		case slices.Contains(keys, s.key):
			list = append(list, s)
		}
	}

	return list
}

// setSchedule converts the settings of the timer that determine its ticks.
func (t *timer) setSchedule(s *task.Spec) error {
	// Calendar events.
	zone, recurring, all := "", false, task.Schedules{}
	for i, event := range t.timesOf("OnCalendar") {
		if i == 0 {
			t.job.Line = event.line
		}

		expr, z, err := Calendar(event.value, s.Timezone)
		if err != nil {
			t.job.Line = event.line
			return fmt.Errorf("OnCalendar=%s: %w", event.value, err)
		}

		if all = append(all, expr); isOnce(expr) {
			continue // it contains its offset from UTC
		}
		if recurring && z != zone {
			return fmt.Errorf("OnCalendar= has several time zones, but a task has only one")
		}
		zone, recurring = z, true
	}

	if zone != "" {
		s.Timezone = zone
	}

	if location, err := schedule.Location(s.Timezone); err == nil && recurring && len(clockChanges(location)) > 0 {
		// systemd skips a local time that does not exist, and elapses once at one that exists twice, even if the
		// hour is *. In Carillon the policy does not apply to an hour field that starts with *, but it applies to
		// 0-23.
		s.DST = task.DST{Gap: task.GapSkip, Fold: task.FoldFirst}

		for i, expr := range all {
			fields := strings.Fields(expr)
			if hour := len(fields) - 4; !isOnce(expr) && fields[hour] == "*" {
				fields[hour] = "0-23"
				all[i] = strings.Join(fields, " ")
			}
		}
	}

	// Timers that count from the previous start or end become @every, which has another anchor.
	for _, after := range []struct{ key, form string }{{"OnUnitActiveSec", "@every %s"}, {"OnUnitInactiveSec", "@every %s after completion"}} {
		for _, v := range t.timesOf(after.key) {
			period, err := parseTimespan(v.value)
			if err != nil || period <= 0 {
				t.job.Line = v.line
				return fmt.Errorf("%s=%s: is not a period", after.key, v.value)
			}

			all = append(all, fmt.Sprintf(after.form, task.Duration(period)))
			t.addNote("%s counts from when the task is imported, not from a boot", after.key)

			if t.job.Line == 0 {
				t.job.Line = v.line
			}
		}
	}

	// Without a first start, systemd has nothing to count from.
	if len(all) > 0 && len(t.timesOf("OnCalendar", "OnBootSec", "OnStartupSec", "OnActiveSec")) == 0 {
		t.addNote("systemd does not start the service before something else has started it once; the task runs by itself")
	}

	if len(all) == 0 {
		if err := t.addBoot(&all); err != nil {
			return err
		}
	}

	// What is left has no counterpart, and is an error only if there is no other time.
	for _, v := range t.timesOf("OnBootSec", "OnStartupSec", "OnActiveSec") {
		switch {
		case len(all) == 0:
			t.job.Line = v.line
			return fmt.Errorf("%s is not supported: tasks run at times, or when a node boots", v.key)
		case !t.countsFromBoot(v) && !all.AtBoot():
			t.addNote("%s=%s is not supported: the task runs only at the other times of the timer", v.key, v.value)
		case !t.countsFromBoot(v):
			t.addNote("%s=%s is not supported: the task runs only at boot", v.key, v.value)
		case !all.AtBoot():
			t.addNote("%s=%s is not supported: a task that runs at boot cannot have other times; create another one with the schedule %s", v.key, v.value, task.BootSchedule)
		}
	}

	if len(all) == 0 {
		return fmt.Errorf("the timer has no schedule")
	}

	s.Schedule = slices.Compact(all)
	t.setPolicies(s)

	switch v := t.unit.lastValue("Timer", "RandomizedDelaySec"); {
	case v == "":
	case all.AtBoot():
		t.addNote("RandomizedDelaySec=%s: the run at boot is not delayed", v)
	default:
		delay, err := parseTimespan(v)
		if err != nil {
			return fmt.Errorf("RandomizedDelaySec=%s: %w", v, err)
		}

		if d := task.Duration(delay.Truncate(time.Millisecond)); d > task.MaxJitter {
			t.addNote("RandomizedDelaySec=%s is reduced to %s", v, task.MaxJitter)
			s.Jitter = task.MaxJitter
		} else {
			s.Jitter = d
		}
	}

	return nil
}

// noteLongDelay adds a note if the random delay may be longer than the time between two ticks.
func (t *timer) noteLongDelay(s task.Spec) {
	const examined = 100 // ticks

	value := t.unit.lastValue("Timer", "RandomizedDelaySec")
	delay, err := parseTimespan(value)
	if err != nil || s.Jitter == 0 {
		return
	}

	ticks, err := schedule.Parse(s.Timing(), time.Unix(0, 0))
	if err != nil {
		return // the job is refused
	}

	last, ok := ticks.Next(time.Unix(0, 0))
	for range examined {
		next, more := ticks.Next(last)
		if !ok || !more {
			return
		}

		if next.Sub(last) < delay {
			t.addNote("RandomizedDelaySec=%s is longer than the time between ticks: systemd skips the ticks within the delay; the task runs at each tick, before the next one", value)
			return
		}
		last = next
	}
}

// countsFromBoot reports whether a setting counts from a boot. The service manager of the system starts with it, those of users do not.
func (t *timer) countsFromBoot(s setting) bool {
	return s.key == "OnBootSec" || s.key == "OnStartupSec" && t.scope.user == ""
}

// addBoot adds the schedule of a timer that counts only from a boot. The task runs as soon as its node has joined the cluster. To
// sleep first would not keep the delay: the first join of a node counts as a boot, although its host may have been up for long, and
// each retry would sleep again.
func (t *timer) addBoot(all *task.Schedules) error {
	for _, v := range t.timesOf("OnBootSec", "OnStartupSec") {
		if !t.countsFromBoot(v) {
			continue
		}

		delay, err := parseTimespan(v.value)
		if err != nil || v.value == "infinity" {
			t.job.Line = v.line
			return fmt.Errorf("%s=%s: is not a period", v.key, v.value)
		}

		if len(*all) > 0 {
			t.addNote("%s=%s: a task has one run for each boot", v.key, v.value)
			continue
		}

		*all, t.job.Line = task.Schedules{task.BootSchedule}, v.line
		if delay > 0 {
			t.addNote("%s=%s: the run starts as soon as its node has joined the cluster after a boot, without this delay", v.key, v.value)
		}
		if t.scope.user != "" {
			t.addNote("%s=%s: systemd waits until the user logs in, unless lingering is enabled for the user; the task runs at each boot", v.key, v.value)
		}
	}

	return nil
}

// setPolicies converts what happens to ticks that are missed, or elapse while the service is active.
func (t *timer) setPolicies(s *task.Spec) {
	// systemd runs missed calendar events only with Persistent=, and then once.
	s.Missed.Policy = task.MissedSkip
	if t.unit.boolValue("Timer", "Persistent") {
		if len(t.timesOf("OnCalendar")) > 0 {
			s.Missed.Policy, s.Missed.Window = task.MissedLatest, maxCatchUp
		} else {
			t.addNote("Persistent= has no effect without OnCalendar=")
		}
	}

	// A timer that elapses while its service is active computes its next time from the previous one. So it elapses once
	// as soon as the service has ended, for all the times that have passed.
	s.Overlap, s.Queue = task.OverlapQueue, task.QueuePolicy{Limit: 1, Drop: task.DropOldest}
	if t.unit.boolValue("Timer", "DeferReactivation") {
		s.Overlap, s.Queue = task.OverlapSkip, task.QueuePolicy{}
	}

	if s.Schedule.AtBoot() {
		s.Overlap, s.Queue = task.OverlapAllow, task.QueuePolicy{} // the runs of several nodes do not wait for each other
	}

	if t.unit.boolValue("Timer", "FixedRandomDelay") {
		t.addNote("FixedRandomDelay=yes: the jitter of a task differs from tick to tick")
	}
}
