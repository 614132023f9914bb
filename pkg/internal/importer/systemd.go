package importer

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Systemd converts timers and the services that they start, which it finds among the units by their names. It skips
// units without a timer. It does not know drop-ins: pass the output of systemctl cat.
//
// Missed ticks run only with Persistent=, and runs of a service do not overlap. The user of a service is root by
// default.
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

// timer holds the state while a timer is read.
type timer struct {
	unit Unit
	job  Job
}

func (t *timer) addNote(format string, args ...any) {
	t.job.Notes = append(t.job.Notes, fmt.Sprintf(format, args...))
}

// readUnits converts the timer and its service.
func (t *timer) readUnits(units []Unit, o Options) error {
	base := strings.TrimSuffix(path.Base(t.unit.File), ".timer")
	if strings.HasSuffix(base, "@") {
		return fmt.Errorf("is a template: import its instances instead")
	}

	s := o.newSpec("systemd", path.Base(t.unit.File))
	s.Name = joinName(makeSlug(o.Prefix), clipSlug(base, 100))
	s.Description = makeDescription(t.unit.lastValue("Unit", "Description"))
	if err := t.setSchedule(&s); err != nil {
		return err
	}

	// The service has the same name by default.
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
		return fmt.Errorf("starts %s, which is not among the given units", service)
	}

	if names := t.unit.unknownSettings("Timer", timerKeys...); len(names) > 0 {
		t.addNote("settings of the timer that a task does not have: %s", strings.Join(names, ", "))
	}

	if err := t.readService(&s, units[i], service); err != nil {
		return fmt.Errorf("%s: %w", service, err)
	}

	t.job.Spec = s

	return nil
}

// timerKeys are the settings that are converted, or that have no effect.
var timerKeys = strings.Fields(`OnCalendar OnBootSec OnStartupSec OnActiveSec OnUnitActiveSec OnUnitInactiveSec Persistent RandomizedDelaySec
	FixedRandomDelay AccuracySec Unit RemainAfterElapse`)

// setSchedule converts the settings of the timer that determine its ticks.
func (t *timer) setSchedule(s *task.Spec) error {
	// Calendar events.
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
			return fmt.Errorf("OnCalendar= has several time zones, but a task has only one")
		}

		zone = z
		all = append(all, expr)
	}

	if zone != "" {
		s.Timezone = zone
	}

	if location, err := schedule.Location(s.Timezone); err == nil && len(all) > 0 && len(clockChanges(location)) > 0 {
		// systemd skips a local time that does not exist, and elapses once at one that exists twice, even if the
		// hour is *. In Carillon the policy does not apply to an hour field that starts with *, but it applies to
		// 0-23.
		s.DST = task.DST{Gap: task.GapSkip, Fold: task.FoldFirst}

		for i, expr := range all {
			fields := strings.Fields(expr)
			if hour := len(fields) - 4; fields[hour] == "*" {
				fields[hour] = "0-23"
				all[i] = strings.Join(fields, " ")
			}
		}
	}

	// Timers that count from the previous start or end become @every, which has another anchor.
	for _, after := range []struct{ key, form string }{{"OnUnitActiveSec", "@every %s"}, {"OnUnitInactiveSec", "@every %s after completion"}} {
		for _, v := range t.unit.allValues("Timer", after.key) {
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

	// Timers that count from a boot have no counterpart. They are an error only if there is no other time.
	for _, key := range []string{"OnBootSec", "OnStartupSec", "OnActiveSec"} {
		for _, v := range t.unit.allValues("Timer", key) {
			if len(all) == 0 {
				t.job.Line = v.line
				return fmt.Errorf("%s is not supported: tasks run at times, not at boot", key)
			}
			t.addNote("%s=%s is not supported: tasks do not run at boot", key, v.value)
		}
	}

	if len(all) == 0 {
		return fmt.Errorf("the timer has no schedule")
	}

	// systemd runs missed ticks only with Persistent=, and then once.
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
			t.addNote("RandomizedDelaySec=%s is reduced to %s", v, task.MaxJitter)
			s.Jitter = task.MaxJitter
		} else {
			s.Jitter = d
		}
	}

	return nil
}

// systemdPath is the PATH that systemd sets for services.
const systemdPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// serviceKeys are the settings that are converted, or that have no effect on a run.
var serviceKeys = strings.Fields(`Type ExecStart ExecStartPre ExecStartPost ExecCondition User WorkingDirectory Environment TimeoutStartSec TimeoutSec
	RuntimeMaxSec TimeoutStopSec KillMode StandardOutput StandardError SyslogIdentifier RemainAfterExit`)

// readService converts the service that the timer starts.
func (t *timer) readService(s *task.Spec, u Unit, name string) error {
	switch kind := u.lastValue("Service", "Type"); kind {
	case "", "simple", "exec", "oneshot", "idle":
	default:
		return fmt.Errorf("the service type %s is not supported: the process of a task must end, and leave no other processes", kind)
	}

	if u.boolValue("Service", "DynamicUser") && u.lastValue("Service", "User") == "" {
		return errors.New("DynamicUser=yes is not supported, and without User= the task would run as root: set User=")
	}

	// systemd's defaults: PATH, the user root, and the directory /.
	x := expander{unit: name}
	env, err := readEnvironment(u, x)
	if err != nil {
		return err
	}

	if env["PATH"] == "" {
		env["PATH"] = systemdPath
	}

	p := &task.Process{Env: env, User: u.lastValue("Service", "User"), Dir: "/"}
	if p.User == "" {
		p.User = "root"
	}

	if p.User, err = x.expandSpecifiers(p.User); err != nil {
		return err
	}

	if dir := strings.TrimPrefix(u.lastValue("Service", "WorkingDirectory"), "-"); dir == "~" {
		p.Dir = ""
	} else if dir != "" {
		if p.Dir, err = x.expandSpecifiers(dir); err != nil {
			return err
		}
	}

	if p.Command, p.Shell, err = t.buildCommand(u, x); err != nil {
		return err
	}

	s.Action.Process = p
	if err := t.setLimits(s, u); err != nil {
		return err
	}

	if s.Description == "" {
		s.Description = makeDescription(u.lastValue("Unit", "Description"))
	}

	t.nameOthers(u)

	return nil
}

// setLimits converts the timeouts.
func (t *timer) setLimits(s *task.Spec, u Unit) error {
	key := "RuntimeMaxSec"
	if u.lastValue("Service", "Type") == "oneshot" { // its start is the whole run
		if key = "TimeoutStartSec"; u.lastValue("Service", key) == "" {
			key = "TimeoutSec"
		}
	}

	for i, to := range []*task.Duration{&s.Timeout, &s.KillGrace} {
		key := []string{key, "TimeoutStopSec"}[i]
		v := u.lastValue("Service", key)
		if v == "" {
			continue
		}

		d, err := parseTimespan(v)
		if err != nil {
			return fmt.Errorf("%s=%s: %w", key, v, err)
		}

		if d > 0 {
			*to = task.Duration(d)
		}
	}

	s.KillGrace = min(s.KillGrace, task.MaxGrace)

	return nil
}

// nameOthers adds notes about settings of a service that affect it and have no counterpart.
func (t *timer) nameOthers(u Unit) {
	if names := u.unknownSettings("Service", serviceKeys...); len(names) > 0 {
		t.addNote("settings of the service that a task does not have: %s", strings.Join(names, ", "))
	}

	var names []string
	for _, name := range u.unknownSettings("Unit") {
		if strings.HasPrefix(name, "Condition") || strings.HasPrefix(name, "Assert") || strings.HasPrefix(name, "On") || slices.Contains([]string{"Requires", "BindsTo"}, name) {
			names = append(names, name)
		}
	}

	if len(names) > 0 {
		t.addNote("conditions that are not checked before a run: %s", strings.Join(names, ", "))
	}
}

// readEnvironment parses Environment= of a service.
func readEnvironment(u Unit, x expander) (map[string]string, error) {
	env := map[string]string{}
	for _, v := range u.allValues("Service", "Environment") {
		words, err := splitWords(v.value)
		if err != nil {
			return nil, fmt.Errorf("setting Environment=%s: %w", v.value, err)
		}

		for _, w := range words {
			name, value, ok := strings.Cut(w.text, "=")
			if !ok {
				return nil, fmt.Errorf("setting Environment: %s is not an assignment", quoteShort(w.text))
			}
			if env[name], err = x.expandSpecifiers(value); err != nil {
				return nil, err
			}
		}
	}

	return env, nil
}

// expander replaces the specifiers of a unit: %n, %i, %%.
type expander struct{ unit string }

// expandSpecifiers replaces the specifiers. It returns an error for those that it does not know, such as those
// whose value depends on the host.
func (e expander) expandSpecifiers(text string) (string, error) {
	if !strings.Contains(text, "%") {
		return text, nil
	}

	base := strings.TrimSuffix(e.unit, path.Ext(e.unit))
	prefix, instance, _ := strings.Cut(base, "@")
	values := map[byte]string{'%': "%", 'n': e.unit, 'N': base, 'p': prefix, 'i': instance, 't': "/run", 'S': "/var/lib", 'C': "/var/cache", 'L': "/var/log", 'E': "/etc", 'T': "/tmp", 'V': "/var/tmp"}
	var b strings.Builder

	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			b.WriteByte(text[i])
			continue
		}

		if i++; i == len(text) {
			return "", fmt.Errorf("%s ends with %%", quoteShort(text))
		}

		v, ok := values[text[i]]
		if !ok {
			return "", fmt.Errorf("the specifier %%%c is not supported", text[i])
		}

		b.WriteString(v)
	}

	return b.String(), nil
}
