package importer

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// setTimeouts converts the timeouts. The start of a oneshot service is the whole run.
func (s *service) setTimeouts() error {
	key, v := s.unit.lastOf("Service", "TimeoutStartSec", "TimeoutSec")
	switch {
	case s.isOneshot() && s.value("RuntimeMaxSec") != "":
		s.ignored = append(s.ignored, "RuntimeMaxSec")
	case !s.isOneshot():
		if s.value("TimeoutStartSec") != "" && s.commands == 1 {
			s.ignored = append(s.ignored, "TimeoutStartSec")
		}
		key, v = "RuntimeMaxSec", s.value("RuntimeMaxSec")
	}

	if v != "" {
		d, err := parseTimespan(v)
		if err != nil {
			return fmt.Errorf("%s=%s: %w", key, v, err)
		}

		// The start of each command has its own timeout, but the task has one for all of them.
		n := 1
		if s.isOneshot() && s.commands > 1 && d > 0 {
			n = s.commands
			s.addNote("%s=%s: systemd limits each command; the timeout of the task is that of its %d commands together", key, v, n)
		}

		s.spec.Timeout = task.MaxTimeout
		if task.Duration(d) <= task.MaxTimeout/task.Duration(n) {
			s.spec.Timeout = task.Duration(d) * task.Duration(n)
		}
	}

	if !s.isOneshot() && s.commands > 1 {
		s.noteTimeoutOfOthers()
	}

	s.spec.KillGrace = systemdStopTimeout
	if key, v = s.unit.lastOf("Service", "TimeoutStopSec", "TimeoutSec"); v == "" {
		return nil
	}

	d, err := parseTimespan(v)
	if err != nil {
		return fmt.Errorf("%s=%s: %w", key, v, err)
	}

	s.spec.KillGrace = task.Duration(d)
	if d == 0 || s.spec.KillGrace > task.MaxGrace {
		s.spec.KillGrace = task.MaxGrace
		s.addNote("%s=%s: a process has at most %s to end", key, v, task.MaxGrace)
	}

	return nil
}

// noteTimeoutOfOthers adds notes about the timeouts of a service that has other commands than its main one.
func (s *service) noteTimeoutOfOthers() {
	if v := s.value("TimeoutStartSec"); v != "" && v != "infinity" {
		s.addNote("TimeoutStartSec=%s: systemd limits the commands before and after ExecStart= with it; the task does not", v)
	}
	if s.spec.Timeout > 0 {
		s.addNote("RuntimeMaxSec=%s: systemd limits only ExecStart= with it; the timeout of the task includes the other commands", s.value("RuntimeMaxSec"))
	}
}

// signalNumbers maps the numbers of signals to their names.
var signalNumbers = map[string]string{
	"1": "HUP", "2": "INT", "3": "QUIT", "6": "ABRT", "9": "KILL", "10": "USR1", "12": "USR2", "14": "ALRM", "15": "TERM", "28": "WINCH",
}

// setSignal converts the signal that asks the processes to end.
func (s *service) setSignal() error {
	if v := s.value("KillSignal"); v != "" {
		name := strings.TrimPrefix(v, "SIG")
		if named, ok := signalNumbers[name]; ok {
			name = named
		}

		field, _ := task.FindField(task.SpecFields(), "kill_signal")
		if slices.Contains(field.Enum, "SIG"+name) {
			s.spec.KillSignal = "SIG" + name
		} else {
			s.addNote("KillSignal=%s is not one of the signals that kill_signal allows: the task uses SIGTERM", v)
		}
	}

	switch v := s.value("KillMode"); v {
	case "", "control-group":
	case "mixed":
		s.addNote("KillMode=mixed: all processes of a run get kill_signal, not only its main process")
	default:
		s.addNote("KillMode=%s: processes that are left when a run ends are killed", v)
	}

	return nil
}

// exitStatusNames are the names of exit statuses that programs use.
var exitStatusNames = map[string]int{
	"SUCCESS": 0, "FAILURE": 1, "INVALIDARGUMENT": 2, "NOTIMPLEMENTED": 3, "NOPERMISSION": 4, "NOTINSTALLED": 5, "NOTCONFIGURED": 6,
	"NOTRUNNING": 7, "USAGE": 64, "DATAERR": 65, "NOINPUT": 66, "NOUSER": 67, "NOHOST": 68, "UNAVAILABLE": 69, "SOFTWARE": 70,
	"OSERR": 71, "OSFILE": 72, "CANTCREAT": 73, "IOERR": 74, "TEMPFAIL": 75, "PROTOCOL": 76, "NOPERM": 77, "CONFIG": 78,
}

// readStatuses returns the exit codes of a setting, and those of its values that are not exit codes, such as signals.
func (s *service) readStatuses(key string) (codes []int, others []string) {
	for _, v := range s.unit.allValues("Service", key) {
		for word := range strings.FieldsSeq(v.value) {
			code, ok := exitStatusNames[strings.TrimPrefix(word, "EX_")]
			if n, err := strconv.Atoi(word); err == nil && n >= 0 && n <= 255 {
				code, ok = n, true
			}

			switch {
			case !ok:
				others = append(others, word)
			case !slices.Contains(codes, code):
				codes = append(codes, code)
			}
		}
	}

	slices.Sort(codes)

	return codes, others
}

// setSuccess converts the exit codes that count as success. 0 always does.
func (s *service) setSuccess() error {
	codes, others := s.readStatuses("SuccessExitStatus")
	if len(others) > 0 {
		s.addNote("SuccessExitStatus=%s: a process that a signal ends has failed", strings.Join(others, " "))
	}

	codes = slices.DeleteFunc(codes, func(n int) bool { return n == 0 })
	if len(codes) == 0 {
		return nil
	}

	s.spec.Success.ExitCodes = append([]int{0}, codes...)
	if strings.Contains(s.process.Shell, " &&\n") {
		s.addNote("SuccessExitStatus= applies to the run: a command with such an exit code ends it, and systemd continues with the next one")
	}

	return nil
}

// setRetry converts Restart= to attempts. systemd stops after StartLimitBurst= starts within StartLimitIntervalSec=.
func (s *service) setRetry() error {
	retry := &s.spec.Retry
	policy := s.value("Restart")
	forced, others := s.readStatuses("RestartForceExitStatus")

	switch policy {
	case "on-failure", "always":
		retry.On = []task.State{task.Failed, task.TimedOut}
	case "on-abnormal":
		retry.On = []task.State{task.TimedOut}
		s.addNote("Restart=on-abnormal: only a timeout is followed by another attempt, and not a signal")
	case "", "no", "on-success":
		if len(forced) == 0 {
			s.noteRestart(policy, others)
			return nil
		}
		retry.On, retry.ExitCodes = []task.State{task.Failed}, slices.DeleteFunc(forced, func(n int) bool { return n == 0 })
	default:
		s.addNote("Restart=%s: no attempt is followed by another one", policy)
		return nil
	}

	s.noteRestart(policy, others)

	return s.setRetryTimes()
}

// noteRestart adds notes about restarts that a task does not have.
func (s *service) noteRestart(policy string, others []string) {
	if policy == "always" || policy == "on-success" {
		s.addNote("Restart=%s: systemd also starts the service again after a success; the task waits for its next tick", policy)
	}
	if v := s.value("RestartPreventExitStatus"); v != "" && policy != "" && policy != "no" {
		s.addNote("RestartPreventExitStatus=%s: set retry.exit_codes to the exit codes after which it is retried", v)
	} else if v != "" {
		s.ignored = append(s.ignored, "RestartPreventExitStatus")
	}
	if len(others) > 0 {
		s.addNote("RestartForceExitStatus=%s: only exit codes are possible", strings.Join(others, " "))
	}

	if policy == "" || policy == "no" || policy == "on-success" {
		for _, key := range []string{"RestartSec", "RestartSteps", "RestartMaxDelaySec"} {
			if s.unit.hasSetting("Service", key) && len(s.spec.Retry.ExitCodes) == 0 {
				s.ignored = append(s.ignored, key)
			}
		}
	}
}

// setRetryTimes converts the number of restarts and the times between them.
func (s *service) setRetryTimes() error {
	retry := &s.spec.Retry
	span := func(key, value, fallback string) (time.Duration, error) {
		if value == "" {
			value = fallback
		}
		d, err := parseTimespan(value)
		if err != nil {
			return 0, fmt.Errorf("%s=%s: %w", key, value, err)
		}
		return d.Truncate(time.Millisecond), nil
	}

	delay, err := span("RestartSec", s.value("RestartSec"), "100ms")
	if err != nil {
		return err
	}
	longest, err := span("RestartMaxDelaySec", s.value("RestartMaxDelaySec"), "infinity")
	if err != nil {
		return err
	}

	const week = task.Duration(7 * 24 * time.Hour)
	retry.Backoff, retry.Factor, retry.Jitter = min(task.Duration(delay), week), 1, 0
	retry.MaxBackoff = retry.Backoff
	if steps, err := strconv.Atoi(s.value("RestartSteps")); err == nil && steps > 0 && longest > delay && delay > 0 {
		retry.MaxBackoff = min(task.Duration(longest), week)
		retry.Factor = min(math.Pow(float64(longest)/float64(delay), 1/float64(steps)), 100)
	}

	// The interval limits the starts only if so many of them fit into it.
	_, limitSpan := s.unit.lastOf("Unit", "StartLimitIntervalSec", "StartLimitInterval")
	interval, err := span("StartLimitIntervalSec", cmp.Or(limitSpan, s.value("StartLimitInterval")), "10s")
	if err != nil {
		return err
	}

	retry.Attempts = task.MaxAttempts
	burst := 5
	if n, err := strconv.Atoi(cmp.Or(s.unit.lastValue("Unit", "StartLimitBurst"), s.value("StartLimitBurst"))); err == nil {
		burst = n
	}
	limit := "has no limit here"
	if burst > 0 && interval > 0 && delay*time.Duration(burst) < interval {
		retry.Attempts = min(burst, task.MaxAttempts)
		limit = fmt.Sprintf("stops after %d starts within %s", burst, task.Duration(interval))
	}
	s.addNote("Restart=%s: a run has at most %d attempts; systemd %s", s.value("Restart"), retry.Attempts, limit)

	return nil
}
