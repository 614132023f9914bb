package importer

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

// systemdPath is the PATH that systemd sets for services, and container runtimes for images without one.
const systemdPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// systemdStopTimeout is the default of TimeoutStopSec=.
const systemdStopTimeout = task.Duration(90 * time.Second)

// convertedInService are the settings of a service that set a field of the task, or add a note of their own, unless they
// have the default of systemd.
var convertedInService = strings.Fields(`
	Type ExecCondition ExecStart ExecStartPre ExecStartPost DynamicUser User Group SupplementaryGroups Environment EnvironmentFile
	UnsetEnvironment WorkingDirectory RootDirectory RootImage StandardInput StandardInputText StandardInputData StandardOutput
	StandardError UMask Nice IOSchedulingClass IOSchedulingPriority NoNewPrivileges PrivateTmp MemoryMax MemoryLimit MemorySwapMax
	CPUQuota TasksMax LimitNOFILE LimitFSIZE LimitCORE LimitNPROC LimitSTACK LimitAS LimitCPU TimeoutSec TimeoutStartSec
	TimeoutStopSec RuntimeMaxSec KillSignal KillMode Restart RestartSec RestartSteps RestartMaxDelaySec RestartForceExitStatus
	RestartPreventExitStatus SuccessExitStatus RemainAfterExit ExecStop ExecStopPost
	RuntimeDirectory StateDirectory CacheDirectory LogsDirectory ConfigurationDirectory`)

// ignoredInService are the settings that concern the journal, the accounting of systemd, or a running service.
var ignoredInService = strings.Fields(`
	SyslogIdentifier SyslogFacility SyslogLevel SyslogLevelPrefix LogLevelMax LogRateLimitIntervalSec LogRateLimitBurst
	LogExtraFields LogFilterPatterns LogNamespace CPUAccounting MemoryAccounting IOAccounting BlockIOAccounting TasksAccounting
	IPAccounting NotifyAccess PIDFile GuessMainPID ExecReload ReloadSignal TTYPath TTYReset TTYVHangup TTYVTDisallocate
	StartLimitInterval StartLimitBurst StartLimitIntervalSec`)

// impliesNoNewPrivileges are settings with which a service that does not run as root gets NoNewPrivileges=yes, too.
var impliesNoNewPrivileges = strings.Fields(`
	SystemCallFilter SystemCallArchitectures RestrictAddressFamilies RestrictNamespaces PrivateDevices ProtectKernelTunables
	ProtectKernelModules ProtectKernelLogs ProtectClock MemoryDenyWriteExecute RestrictRealtime RestrictSUIDSGID LockPersonality
	SystemCallLog ProtectHostname`)

// service holds the state while a service is read.
type service struct {
	*timer
	unit Unit
	expander
	spec     *task.Spec
	process  *task.Process
	defaults map[string]string // variables that the files of env_from may override
	ignored  []string          // settings without effect in this service
	commands int               // the number of commands of the service
	split    []string          // variables that are arguments of their own, and may have quotes in their value
}

// readService converts the service that the timer starts.
func (t *timer) readService(spec *task.Spec, u Unit, name string) error {
	s := &service{timer: t, unit: u, expander: t.expander, spec: spec, process: &task.Process{}}
	s.expander.unitName = name

	steps := []func() error{
		s.checkType, s.setAccount, s.setEnvironment, s.setCommand, s.setDirectory, s.setInput, s.setPriority, s.setPrivileges,
		s.setControlGroup, s.setRlimits, s.setTimeouts, s.setSignal, s.setSuccess, s.setRetry,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}

	spec.Action.Process = s.process
	if spec.Description == "" {
		spec.Description = s.describe(u)
	}

	s.noteLost()

	return nil
}

// value returns the value in force of a setting of the service.
func (s *service) value(key string) string { return s.unit.lastValue("Service", key) }

// isSystem reports whether the unit belongs to the service manager of the system.
func (s *service) isSystem() bool { return s.scope.user == "" }

// isOneshot reports whether the start of the service is the whole run.
func (s *service) isOneshot() bool { return s.value("Type") == "oneshot" }

// checkType refuses services that do not end by themselves, or see other files than the node has.
func (s *service) checkType() error {
	switch kind := s.value("Type"); {
	case slices.Contains([]string{"", "simple", "exec", "oneshot", "idle"}, kind):
	case strings.ContainsAny(kind, "#;"):
		return fmt.Errorf("%s=%s: systemd has no comments at the end of a line, and ignores this setting: write the comment on a line of its own", "Type", kind)
	default:
		return fmt.Errorf("the service type %s is not supported: the process of a task must end, and leave no other processes", kind)
	}

	if restart := s.value("Restart"); s.isOneshot() && (restart == "always" || restart == "on-success") {
		return fmt.Errorf("%s=%s is not possible with Type=oneshot: systemd refuses the unit", "Restart", restart)
	}

	for _, key := range []string{"RootDirectory", "RootImage"} {
		if v := s.value(key); v != "" && v != "/" {
			return fmt.Errorf("%s=%s is not supported: a task has the root directory of its node", key, v)
		}
	}

	if s.unit.boolValue("Service", "RemainAfterExit") {
		s.addNote("RemainAfterExit=yes: systemd starts the service once, and not again until somebody stops it; the task runs at each tick")
	}

	return nil
}

// setAccount converts the user and the groups. systemd's default is root, or the owner of a user's unit.
func (s *service) setAccount() (err error) {
	p, name := s.process, s.value("User")
	if name, err = s.expandSpecifiers(name); err != nil {
		return fmt.Errorf("setting User: %w", err)
	}

	switch {
	case !s.isSystem():
		p.User = s.scope.user
		if name != "" && name != p.User {
			s.addNote("User=%s has no effect in a unit of %s, which only starts processes of its own", name, p.User)
		}
		s.addNote("it also runs while %s is not logged in, without the variables of a session, such as XDG_RUNTIME_DIR", p.User)

	case name != "":
		p.User = name

	case s.unit.boolValue("Service", "DynamicUser"):
		return errors.New("DynamicUser=yes is not supported, and without User= the task would run as root: set User=")

	default:
		p.User = "root"
		if !s.scope.known {
			s.addNote("without User=, it runs as root, as a unit of the system; if it is the unit of a user, use --user NAME")
		}
	}

	if s.unit.boolValue("Service", "DynamicUser") {
		s.addNote("DynamicUser=yes: the user %s must exist on the node, and may write wherever the file modes permit it", p.User)
	}

	if p.Group, err = s.expandSpecifiers(s.value("Group")); err != nil {
		return fmt.Errorf("setting Group: %w", err)
	}

	for _, v := range s.unit.allValues("Service", "SupplementaryGroups") {
		text, err := s.expandSpecifiers(v.value)
		if err != nil {
			return fmt.Errorf("setting SupplementaryGroups: %w", err)
		}
		p.Groups = append(p.Groups, strings.Fields(text)...)
	}

	if len(p.Groups) > 0 && p.User != "root" {
		s.addNote("SupplementaryGroups=: groups replaces the groups that the node has for %s; add those that the task needs", p.User)
	}

	return nil
}

// shellName matches variables that a shell can set.
var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// presetVariables are set for each process, so that a shell cannot see whether a file has set them.
var presetVariables = strings.Fields("HOME LOGNAME PATH SHELL USER")

// setEnvironment converts the variables. In systemd, files override Environment=. In a task, env overrides files, so
// that the shell sets those variables that no file has set.
func (s *service) setEnvironment() error {
	env, err := s.readEnvironment()
	if err != nil {
		return err
	}

	for _, v := range s.unit.allValues("Service", "UnsetEnvironment") {
		for _, item := range strings.Fields(v.value) {
			name, _, _ := strings.Cut(item, "=")
			if _, ok := env[name]; !ok {
				s.addNote("UnsetEnvironment=%s: a task has no such variable, unless its files or the node set it", name)
			}
			delete(env, name)
		}
	}

	if env["PATH"] == "" {
		env["PATH"] = systemdPath
	}

	// systemd sets USER together with HOME, LOGNAME and SHELL, which Carillon sets, too.
	_, numeric := strconv.Atoi(s.process.User)
	if _, set := env["USER"]; !set && numeric != nil && (s.value("User") != "" || !s.isSystem()) {
		env["USER"] = s.process.User
	}

	if err := s.readEnvironmentFiles(); err != nil {
		return err
	}

	if len(s.process.EnvFrom) > 0 {
		s.defaults = maps.Clone(env)
		maps.DeleteFunc(s.defaults, func(name, _ string) bool {
			return slices.Contains(presetVariables, name) || !shellName.MatchString(name)
		})
		for name := range s.defaults {
			delete(env, name)
		}

		s.addNote("env overrides the files of env_from, also if they set %s", strings.Join(slices.Sorted(maps.Keys(env)), ", "))
		if s.process.User != "root" && s.isSystem() {
			s.addNote("EnvironmentFile=: the file is read as %s, not as root", s.process.User)
		}
		if s.unit.hasSetting("Service", "ExecStartPre") {
			s.addNote("EnvironmentFile=: the task reads the file once, before ExecStartPre=; systemd reads it before each command, so that ExecStartPre= may write it")
		}
	}

	s.process.Env = env

	return nil
}

// readEnvironment parses Environment=.
func (s *service) readEnvironment() (map[string]string, error) {
	env := map[string]string{}
	for _, v := range s.unit.allValues("Service", "Environment") {
		words, err := splitWords(v.value, false)
		if err != nil {
			return nil, fmt.Errorf("setting Environment=%s: %w", v.value, err)
		}

		for _, w := range words {
			name, value, ok := strings.Cut(w.text, "=")
			if !ok || !shellName.MatchString(name) {
				s.addNote("Environment=: systemd ignores %s, because it is not an assignment", quoteShort(w.text))
				continue
			}
			if env[name], err = s.expandSpecifiers(value); err != nil {
				return nil, err
			}
		}
	}

	return env, nil
}

// readEnvironmentFiles parses EnvironmentFile=.
func (s *service) readEnvironmentFiles() error {
	for _, v := range s.unit.allValues("Service", "EnvironmentFile") {
		file, optional := strings.CutPrefix(v.value, "-")
		file, err := s.expandSpecifiers(file)
		switch {
		case err != nil:
			return fmt.Errorf("EnvironmentFile=%s: %w", v.value, err)
		case strings.ContainsAny(file, "*?["):
			return fmt.Errorf("EnvironmentFile=%s: a pattern is not supported: name the files", v.value)
		}

		s.process.EnvFrom = append(s.process.EnvFrom, task.EnvFrom{File: file, Optional: optional})
	}

	return nil
}

// setCommand converts what the service starts.
func (s *service) setCommand() (err error) {
	s.process.Command, s.process.Shell, err = s.buildCommand()

	if s.unit.hasSetting("Service", "ExecStartPost") && !s.isOneshot() {
		s.addNote("ExecStartPost= runs when ExecStart= has ended; systemd runs it as soon as ExecStart= has been started")
	}

	for _, key := range []string{"ExecStop", "ExecStopPost"} {
		if s.unit.hasSetting("Service", key) {
			s.addNote("%s= is not run: add the command to that of the task", key)
		}
	}

	return err
}

// setDirectory converts the working directory. The default is /, or the home of the owner of a user's unit.
func (s *service) setDirectory() (err error) {
	v := s.value("WorkingDirectory")
	dir, optional := strings.CutPrefix(v, "-")

	switch {
	case dir == "~", dir == "" && !s.isSystem():
		return nil // the home of the user
	case dir == "":
		s.process.Dir = "/"
		return nil
	case optional:
		s.addNote("WorkingDirectory=%s: if the directory is missing, the run fails; systemd uses another one", v)
	}

	if s.process.Dir, err = s.expandSpecifiers(dir); err != nil {
		return fmt.Errorf("WorkingDirectory=%s: %w", v, err)
	}

	return nil
}

// setInput converts the standard input, and adds a note about output to a file.
func (s *service) setInput() error {
	data, err := s.readInputData()
	if err != nil {
		return err
	}

	kind, file, _ := strings.Cut(s.value("StandardInput"), ":")
	switch {
	case kind == "data" || kind == "" && data != "":
		if len(data) > task.MaxStdinText {
			return fmt.Errorf("StandardInputText=, StandardInputData=: is longer than %d bytes: store it in a file, and set StandardInput=file:PATH", task.MaxStdinText)
		}
		if data != "" {
			s.process.Stdin = &task.Stdin{Text: data}
		}

	case kind == "file":
		if file, err = s.expandSpecifiers(file); err != nil {
			return fmt.Errorf("setting StandardInput: %w", err)
		}
		s.process.Stdin = &task.Stdin{File: file}

	case kind != "" && kind != "null":
		return fmt.Errorf("StandardInput=%s is not supported: a task has no terminal and no socket", s.value("StandardInput"))
	}

	if s.process.Stdin != nil && s.commands > 1 {
		s.addNote("StandardInput=: the commands of the task share one input, and the first one that reads it may leave nothing for the others; systemd gives each its own")
	}

	for _, key := range []string{"StandardOutput", "StandardError"} {
		switch v := s.value(key); v {
		case "", "inherit", "journal", "syslog", "kmsg", "journal+console", "syslog+console", "kmsg+console":
			if v != "" {
				s.ignored = append(s.ignored, key)
			}
		default:
			s.addNote("%s=%s: the output is kept by Carillon instead; read it with carillon logs", key, v)
		}
	}

	return nil
}

// readInputData returns StandardInputText= and StandardInputData=, in their order.
func (s *service) readInputData() (string, error) {
	var b strings.Builder
	for _, v := range s.unit.settings {
		if v.section != "Service" || v.key != "StandardInputText" && v.key != "StandardInputData" {
			continue
		}

		switch {
		case v.value == "": // discards what comes before
			b.Reset()

		case v.key == "StandardInputText":
			text, err := unescapeText(v.value)
			if err == nil {
				text, err = s.expandSpecifiers(text)
			}
			if err != nil {
				return "", fmt.Errorf("setting StandardInputText: %w", err)
			}
			b.WriteString(text + "\n")

		default:
			data, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(v.value), ""))
			switch {
			case err != nil:
				return "", errors.New("StandardInputData=: systemd rejects it, because it is not base64")
			case !utf8.Valid(data):
				return "", errors.New("StandardInputData=: is not text: store it in a file, and set StandardInput=file:PATH")
			}
			b.Write(data)
		}
	}

	return b.String(), nil
}

// noteLost adds notes about the settings that have no counterpart.
func (s *service) noteLost() {
	var lost, directories []string
	if s.unit.isEmptied("Service", "CapabilityBoundingSet") {
		lost = append(lost, "CapabilityBoundingSet") // an empty value drops all capabilities
	}

	for _, key := range s.unit.settingNames("Service") {
		switch {
		case strings.HasSuffix(key, "Directory") && key != "WorkingDirectory" && key != "RootDirectory" && slices.Contains(convertedInService, key):
			directories = append(directories, key+"="+s.value(key))
		case key == "StartLimitAction":
			if v := s.value(key); v != "none" {
				lost = append(lost, key+"="+v)
			}
		case (key == "StartLimitInterval" || key == "StartLimitBurst") && (s.unit.restarts() || len(s.unit.startLimits()) > 0):
		case slices.Contains(ignoredInService, key):
			s.ignored = append(s.ignored, key)
		case !slices.Contains(convertedInService, key):
			lost = append(lost, key)
		}
	}

	if len(directories) > 0 {
		s.addNote("directories that systemd creates, and Carillon does not: %s", strings.Join(directories, ", "))
	}
	if len(lost) > 0 {
		s.addNote("settings of the service that a task does not have: %s", strings.Join(lost, ", "))
	}

	s.timer.ignored = append(s.timer.ignored, s.ignored...)
	s.timer.noteUnitSection(s.unit, s.expander)
}

// restarts reports whether systemd restarts a service by itself.
func (u Unit) restarts() bool {
	return !slices.Contains([]string{"", "no"}, u.lastValue("Service", "Restart"))
}

// startLimits returns the settings that limit how often a service is started. There are none if one of them is 0.
func (u Unit) startLimits() (list []string) {
	for _, k := range [][2]string{
		{"Unit", "StartLimitBurst"}, {"Unit", "StartLimitIntervalSec"}, {"Unit", "StartLimitInterval"},
		{"Service", "StartLimitBurst"}, {"Service", "StartLimitInterval"}, // their former section
	} {
		v := u.lastValue(k[0], k[1])
		if d, err := parseTimespan(v); err == nil && d == 0 && v != "infinity" {
			return nil
		}
		if v != "" {
			list = append(list, k[1]+"="+v)
		}
	}

	return list
}

// The settings in the section [Unit], by what they are.
var (
	dependsOnUnits = strings.Fields("Requires Requisite BindsTo Wants Upholds Conflicts RequiresMountsFor WantsMountsFor")
	startsUnits    = strings.Fields("OnFailure OnSuccess")
	ignoredInUnit  = strings.Fields(`
	Documentation SourcePath DefaultDependencies Before After PartOf StopWhenUnneeded RefuseManualStart RefuseManualStop CollectMode
	AllowIsolate IgnoreOnIsolate JoinsNamespaceOf OnFailureJobMode OnSuccessJobMode PropagatesStopTo StopPropagatedFrom
	PropagatesReloadTo ReloadPropagatedFrom StartLimitIntervalSec StartLimitInterval StartLimitBurst RebootArgument`)
)

// noteUnitSection adds notes about the section [Unit] of the timer or of its service.
func (t *timer) noteUnitSection(u Unit, x expander) {
	var conditions, dependencies, lost []string
	isService := path.Ext(u.File) == ".service"

	// With Restart=, the limit is the number of attempts. The limit of a timer concerns only its own starts.
	if limits := u.startLimits(); isService && !u.restarts() && len(limits) > 0 {
		t.addNote("%s: systemd does not start the service more often, and the task runs at each tick", strings.Join(limits, ", "))
	}

	for _, key := range u.settingNames("Unit") {
		var values []string
		for _, v := range u.allValues("Unit", key) {
			if text, err := x.expandSpecifiers(v.value); err == nil {
				v.value = text
			}
			values = append(values, key+"="+v.value)
		}

		switch {
		case key == "Description":
		case key == "StartLimitAction":
			if u.lastValue("Unit", key) != "none" {
				lost = append(lost, values[len(values)-1])
			}
		case isService && strings.HasPrefix(key, "StartLimit") && (u.restarts() || len(u.startLimits()) > 0):
		case strings.HasPrefix(key, "Condition"), strings.HasPrefix(key, "Assert"):
			conditions = append(conditions, values...)
		case slices.Contains(startsUnits, key):
			state := map[bool]string{true: "failed", false: "succeeded"}[key == "OnFailure"]
			note := fmt.Sprintf("%s: systemd starts this unit after a run has %s, and Carillon does not: use a task with after: {task: %s, when: %s}",
				strings.Join(values, ", "), state, t.job.Spec.Name, state)
			if key == "OnFailure" {
				note += "; to only notify somebody of failures, set alerts.notify"
			}
			t.addNote("%s", note)
		case slices.Contains(dependsOnUnits, key):
			dependencies = append(dependencies, values...)
		case slices.Contains(ignoredInUnit, key):
			t.ignored = append(t.ignored, key)
		default:
			lost = append(lost, values...)
		}
	}

	for _, n := range []struct {
		text string
		list []string
	}{
		{"conditions that are not checked before a run", conditions},
		{"other units are not started, stopped or awaited", dependencies},
		{"settings of the unit that a task does not have", lost},
	} {
		if len(n.list) > 0 {
			t.addNote("%s: %s", n.text, strings.Join(n.list, ", "))
		}
	}
}
