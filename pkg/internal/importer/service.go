package importer

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

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
func (x expander) expandSpecifiers(text string) (string, error) {
	if !strings.Contains(text, "%") {
		return text, nil
	}

	base := strings.TrimSuffix(x.unit, path.Ext(x.unit))
	prefix, instance, _ := strings.Cut(base, "@")
	values := map[byte]string{'%': "%", 'n': x.unit, 'N': base, 'p': prefix, 'i': instance, 't': "/run", 'S': "/var/lib", 'C': "/var/cache", 'L': "/var/log", 'E': "/etc", 'T': "/tmp", 'V': "/var/tmp"}
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
