package task

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Limits of alerts and receivers.
const (
	MaxAlertKept       = 500 // the ended runs that a task with alerts may keep: an alert is judged by all of them
	MaxReceiverActive  = 20
	MaxReceiverTimeout = Duration(5 * time.Minute)
	MinReceiverKeep    = 50
	minRepeat          = Duration(time.Hour)
)

// The defaults of receivers, where they differ from those of other tasks. A message that hangs or waits for a retry delays the next
// one, so its attempts are short and few. What it was about is sent again if it fails.
const (
	receiverSchedule   = ManualSchedule
	receiverTimeout    = Duration(time.Minute) // of a process; a request has DefaultHTTPTimeout
	receiverAttempts   = 4
	receiverMaxBackoff = Duration(time.Minute)
)

// ReceiverDefaults returns a Spec with all defaults of a receiver whose action is a.
func ReceiverDefaults(a Action) Spec {
	s := Defaults()
	s.Receiver = &Receiver{}
	s.Schedule = Schedules{receiverSchedule}
	s.Overlap, s.MaxActive = OverlapAllow, MaxReceiverActive
	s.Retry.Attempts, s.Retry.MaxBackoff, s.Retry.On = receiverAttempts, receiverMaxBackoff, receiverRetries()
	s.History.Keep = MinReceiverKeep
	if a.HTTP == nil {
		s.Timeout = receiverTimeout
	}

	return s
}

// DefaultsOf returns the defaults of tasks like s: receivers, tasks that run at boot and tasks with sources have defaults of
// their own.
func DefaultsOf(s Spec) Spec {
	switch {
	case s.Receiver != nil:
		return ReceiverDefaults(s.Action)
	case len(s.After) > 0:
		return dependentDefaults(s)
	case s.Schedule.AtBoot():
		return bootDefaults()
	}

	return Defaults()
}

// receiverRetries returns the states after which a message is sent again. A message that arrives twice is better than none.
func receiverRetries() []State { return []State{Failed, TimedOut, Lost} }

// completeReceiver sets the default of the request of a receiver. A target that is unreachable counts as a failed attempt, because
// a message that waits for it has an old text.
func (s *Spec) completeReceiver() {
	if s.Receiver != nil && s.Action.HTTP != nil && s.Action.HTTP.UnsentFor == nil {
		s.Action.HTTP.UnsentFor = new(Duration)
	}
}

// specChecks are the checks of what is only in specs, or on which no ticks depend: alerts, receivers, and references to causes.
func (s *Spec) specChecks() []func() error {
	return []func() error{s.validateAlerts, s.validateLimits, s.validateNotify, s.validateReceiver, s.validateCauseRefs}
}

// validateLimits refuses limits that no run can exceed.
func (s *Spec) validateLimits() error {
	a := s.Alerts
	switch {
	case a == nil:
		return nil
	case a.MaxLateness > 0 && !s.Schedule.HasTicks():
		return Invalid(CodeBadValue, "alerts.max_lateness", "requires a schedule with ticks; %s has none", s.Schedule[0])
	}

	// With several attempts or parts, or attempts that do not count, a run may take longer than its timeout.
	if h := s.Action.HTTP; s.Retry.Attempts > 1 || s.Target.FansOut() || h != nil && h.EffectiveUnsentFor() > 0 {
		return nil
	}

	timeout := s.Timeout
	if s.Action.HTTP != nil {
		timeout = cmp.Or(timeout, DefaultHTTPTimeout)
	}
	if timeout > 0 && a.MaxDuration >= timeout {
		return Invalid(CodeOutOfRange, "alerts.max_duration", "%s is not less than timeout, %s, at which the run ends; a run that times out is a failure (alerts.failures)", a.MaxDuration, timeout)
	}

	return nil
}

// validateAlerts checks what is expected of the task, except for what depends on its schedule (package alert).
func (s *Spec) validateAlerts() error {
	a := s.Alerts
	if a == nil {
		return nil
	}

	switch {
	case a.FailuresInARow() > s.History.Keep:
		return Invalid(CodeOutOfRange, "alerts.failures", "%d is more than history.keep, %d: fewer failures in a row are kept", a.FailuresInARow(), s.History.Keep)
	case s.History.Keep > MaxAlertKept:
		return Invalid(CodeOutOfRange, "history.keep", "%d is more than %d, which is the maximum for a task with alerts", s.History.Keep, MaxAlertKept)
	case s.History.Record != RecordFailures || a.SuccessWithin == 0 && a.SuccessBy == "":
		return nil
	}

	// Of tasks that keep only failures, the ledger knows the last success. It knows no manual runs.
	field := "alerts.success_within"
	if a.SuccessWithin == 0 {
		field = "alerts.success_by"
	}
	if !s.Schedule.HasTicks() {
		return Invalid(CodeBadValue, field, "requires history.record: all for the schedule %s, because successful runs without a tick are not kept otherwise", s.Schedule[0])
	}
	if l := s.History.Ledger; l != nil && *l == 0 {
		return Invalid(CodeBadValue, field, "requires history.record: all or a ledger, but history.ledger is 0s: nothing would show when the task last succeeded")
	}

	return nil
}

// checkReceiverName checks NAME or NAMESPACE/NAME of a receiver.
func checkReceiverName(field, name string) error {
	namespace, inner, ok := strings.Cut(name, "/")
	if !ok {
		return CheckName(field, name)
	}
	if err := CheckName(field, namespace); err != nil {
		return err
	}

	return CheckName(field, inner)
}

// validateNotify checks the names of the receivers of the task. One without a namespace is in that of the task.
func (s *Spec) validateNotify() error {
	names := s.Alerts.Receivers(s.Namespace)
	for i, name := range names {
		field := fmt.Sprintf("alerts.notify[%d]", i)
		if err := checkReceiverName(field, s.Alerts.Notify[i]); err != nil {
			return err
		}

		switch {
		case name == s.Namespace+"/"+s.Name:
			return Invalid(CodeBadValue, field, "%s is the task itself; name another task, because a receiver that fails cannot say so", Quote(s.Alerts.Notify[i]))
		case slices.Contains(names[:i], name):
			return Invalid(CodeBadValue, field, "%s is given twice", Quote(name))
		}
	}

	return nil
}

// validateReceiver checks that the task can carry messages: nothing stops it, and one message cannot block the next for long.
func (s *Spec) validateReceiver() error {
	r := s.Receiver
	if r == nil {
		return nil
	}

	for i, name := range r.From {
		if err := CheckName(fmt.Sprintf("receiver.from[%d]", i), name); err != nil {
			return err
		}
	}

	invalid := func(field string, value any, rule string, args ...any) error {
		return Invalid(CodeBadValue, field, "%v: a task with receiver %s", value, fmt.Sprintf(rule, args...))
	}

	switch {
	case r.Repeat != nil && *r.Repeat != 0 && *r.Repeat < minRepeat:
		return Invalid(CodeOutOfRange, "receiver.repeat", "%s is neither 0s nor at least %s", *r.Repeat, minRepeat)
	case !slices.Equal(s.Schedule, Schedules{receiverSchedule}):
		return invalid("schedule", Quote(strings.Join(s.Schedule, ", ")), "has only messages; use %s, or omit this field", receiverSchedule)
	case s.Target.FansOut():
		return invalid("target", "several parts", "requires one, so that a message is sent once")
	case s.Shadow:
		return invalid("shadow", s.Shadow, "requires false")
	case s.PauseAfter != 0:
		return invalid("pause_after_failures", s.PauseAfter, "must not pause; omit this field")
	case s.Overlap != OverlapAllow:
		return invalid("overlap", s.Overlap, "requires %s", OverlapAllow)
	case s.MaxActive < 1 || s.MaxActive > MaxReceiverActive:
		return invalid("max_active", s.MaxActive, "requires 1 to %d", MaxReceiverActive)
	case s.Timeout > MaxReceiverTimeout || s.Timeout == 0 && s.Action.HTTP == nil:
		return invalid("timeout", s.Timeout, "requires a limit of at most %s", MaxReceiverTimeout)
	case s.Retry.Attempts > receiverAttempts:
		return invalid("retry.attempts", s.Retry.Attempts, "requires at most %d; what failed is sent again anyway", receiverAttempts)
	case s.Retry.MaxBackoff > receiverMaxBackoff:
		return invalid("retry.max_backoff", s.Retry.MaxBackoff, "requires at most %s", receiverMaxBackoff)
	case len(s.Retry.ExitCodes) > 0:
		return invalid("retry.exit_codes", s.Retry.ExitCodes, "requires all; omit this field")
	case s.History.Keep < MinReceiverKeep:
		return invalid("history.keep", s.History.Keep, "requires at least %d", MinReceiverKeep)
	case s.History.Record != RecordAll:
		return invalid("history.record", s.History.Record, "requires %s", RecordAll)
	case s.Action.HTTP != nil && s.Action.HTTP.EffectiveUnsentFor() != 0:
		return invalid("action.http.unsent_for", Duration(s.Action.HTTP.EffectiveUnsentFor()), "requires 0s, so that no message waits with an old text")
	}

	for _, state := range receiverRetries() {
		if !slices.Contains(s.Retry.On, state) {
			return invalid("retry.on", s.Retry.On, "requires %s too; a message that arrives twice is better than none", state)
		}
	}

	return nil
}

// CheckMessageEnv refuses variables of messages in the request for a manual run of a receiver. Otherwise, everybody who may trigger a
// receiver could send any text to the people who rely on it.
func (s *Spec) CheckMessageEnv(m ManualInput) error {
	if s.Receiver == nil {
		return nil
	}

	for _, name := range slices.Sorted(maps.Keys(m.Env)) {
		if strings.HasPrefix(name, AlertEnvPrefix) {
			return Invalid(CodeNotAllowed, "env", "%s: in a task with receiver, only Carillon sets variables that begin with %s; to send a test message: carillon alert test", Quote(name), AlertEnvPrefix)
		}
	}

	return nil
}
