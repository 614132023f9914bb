package task

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of a user's input that are used apart from the tags of Spec. Arguments and environment stay below what Linux passes to a program (128 KiB for
// each string). MaxAction applies to the JSON form, in which one byte may become six. It keeps a spec with its
// entry, or a run with its environment, far below the maximum size of an etcd request (1.5 MiB).
const (
	MaxName        = 128
	MaxDescription = 4096
	MaxLabels      = 64
	MaxLabel       = 63
	MaxSelector    = 1024
	MaxArg         = 64 << 10
	MaxAction      = 128 << 10
	MaxEnv         = 256
	MaxAttempts    = 100
	MaxKeep        = 10_000
	MaxMissed      = 10_000
	MaxTimeout     = Duration(366 * 24 * time.Hour)
	MaxGrace       = Duration(time.Hour)
	MaxJitter      = Duration(24 * time.Hour)
	maxTTL         = Duration(10 * 366 * 24 * time.Hour)
	MaxQueue       = 100
	MaxActive      = 1000
	MaxReason      = 256
)

// CheckName checks the name of a task, a namespace or a node.
func CheckName(field, name string) error {
	switch {
	case name == "":
		return Invalid(CodeRequired, field, "is required")
	case len(name) > MaxName:
		return Invalid(CodeBadName, field, "%s is %d bytes long; at most %d are allowed", Quote(name), len(name), MaxName)
	case !wellFormed(name):
		return Invalid(CodeBadName, field, "%s: use a-z, 0-9, '.', '_' and '-', beginning and ending with a letter or digit%s", Quote(name), allowedInstead(suggestName(name)))
	case strings.Contains(name, ".."):
		return Invalid(CodeBadName, field, "%s: two dots in a row are not allowed%s", Quote(name), allowedInstead(suggestName(name)))
	}

	return nil
}

// wellFormed is equivalent to the pattern [a-z0-9]([a-z0-9._-]*[a-z0-9])?, but much faster: a scheduler checks
// a million names when it starts.
func wellFormed(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case i == 0 || i == len(name)-1 || c != '.' && c != '_' && c != '-':
			return false
		}
	}

	return name != ""
}

// Validate checks everything that does not depend on the current time. Package schedule checks schedules and
// time zones. It returns the first problem as an *Error.
func (s *Spec) Validate() error {
	if err := cmp.Or(CheckName("name", s.Name), CheckName("namespace", s.Namespace)); err != nil {
		return err
	}
	if err := s.validateFields(); err != nil {
		return err
	}

	for _, check := range s.specChecks() {
		if err := check(); err != nil {
			return err
		}
	}

	return nil
}

// validateFields is Validate without the checks of names, and without specChecks.
func (s *Spec) validateFields() error {
	if problems := s.checkTags(1); len(problems) > 0 {
		return problems[0]
	}

	for _, check := range s.checks() {
		if err := check(); err != nil {
			return err
		}
	}

	return nil
}

// checkTags checks all fields except the action against their tags. It returns at most so many problems.
func (s *Spec) checkTags(most int) (problems []error) {
	checkRanges(reflect.ValueOf(s).Elem(), fieldsBesideAction(), func(err error) bool {
		problems = append(problems, err)
		return len(problems) < most
	})

	return problems
}

// fieldsBesideAction returns the fields of a task without its action, which Action.Validate checks.
var fieldsBesideAction = sync.OnceValue(func() []Field {
	return slices.DeleteFunc(slices.Clone(SpecFields()), func(f Field) bool { return f.Path == "action" })
})

// actionFields returns the fields of an action.
var actionFields = sync.OnceValue(func() []Field {
	f, _ := FindField(SpecFields(), "action")
	return f.Inner
})

// ValidateAll is Validate for somebody who corrects a spec: it returns the problems of all fields, and the first problem of
// each group of fields that depend on each other, joined by errors.Join.
func (s *Spec) ValidateAll() error {
	problems := append([]error{CheckName("name", s.Name), CheckName("namespace", s.Namespace)}, s.checkTags(math.MaxInt)...)
	for _, check := range append(s.checks(), s.specChecks()...) {
		problems = append(problems, check())
	}

	return errors.Join(problems...)
}

// checks are the checks of validateFields, in order.
func (s *Spec) checks() []func() error {
	return []func() error{
		func() error { return checkCharacters("description", s.Description) },
		func() error { return CheckLabels("labels", s.Labels) },
		s.Action.Validate,
		s.validateTiming,
		s.validateBoot,
		s.validateSources,
		s.validateOverlap,
		s.Missed.validate,
		s.validatePause,
		s.Retry.validate,
		s.Target.validate,
		s.Success.validate,
		s.validateHTTP,
		s.validateMail,
		s.validateAccept,
		s.validateWorkflow,
	}
}

// validateTiming checks the fields that determine ticks, except for the schedule and the zone.
func (s *Spec) validateTiming() error {
	for _, at := range []struct {
		field string
		Time
	}{{"start", s.Start}, {"end", s.End}, {"paused_until", s.PausedUntil}} {
		if err := CheckYear(at.field, at.Time); err != nil {
			return err
		}
	}

	if !s.Start.IsZero() && !s.End.IsZero() && s.End.Before(s.Start.Time) {
		return Invalid(CodeBadTime, "end", "%s is before start, %s", s.End.Format(time.RFC3339), s.Start.Format(time.RFC3339))
	}

	return nil
}

// CheckYear rejects a time that is certainly a mistake. No time is correct.
func CheckYear(field string, at Time) error {
	if year := at.Year(); !at.IsZero() && (year < 2000 || year > 2100) {
		return Invalid(CodeBadTime, field, "%s is not in the years 2000 to 2100", at.Format(time.RFC3339))
	}

	return nil
}

// validateBoot refuses what has no meaning for a task that runs at boot: what concerns ticks, and runs with several nodes.
func (s *Spec) validateBoot() error {
	if !s.Schedule.AtBoot() {
		return nil
	}

	for _, f := range []struct {
		field string
		set   bool
	}{{"start", !s.Start.IsZero()}, {"end", !s.End.IsZero()}, {"jitter", s.Jitter != 0}, {"max_runs", s.MaxRuns != 0}, {"ttl", s.TTL != 0}} {
		if f.set {
			return Invalid(CodeBadValue, f.field, "cannot be combined with the schedule %s, which has no ticks; omit this field", BootSchedule)
		}
	}

	field := "target.count"
	if s.Target.Parts > 0 {
		field = "target.parts"
	}
	if s.Target.FansOut() {
		return Invalid(CodeBadValue, field, "cannot be combined with the schedule %s: each node that boots has a run of its own; omit this field", BootSchedule)
	}

	return nil
}

// validateOverlap checks the overlap policy and the fields that belong to it.
func (s *Spec) validateOverlap() error {
	if s.Queue != (QueuePolicy{}) && s.Overlap != OverlapQueue {
		return Invalid(CodeBadValue, "queue", "requires overlap: queue, but overlap is %s", s.Overlap)
	}
	if s.Queue.Limit > MaxQueue && len(s.After) == 0 {
		return Invalid(CodeOutOfRange, "queue.limit", "%d is not between 1 and %d; only tasks with after may have more", s.Queue.Limit, MaxQueue)
	}
	if s.MaxActive != 0 && s.Overlap != OverlapAllow && s.Receiver == nil { // a receiver has max_active by default
		return Invalid(CodeBadValue, "max_active", "requires overlap: allow, but overlap is %s", s.Overlap)
	}

	return nil
}

// validatePause checks the fields of a pause.
func (s *Spec) validatePause() error {
	if !s.Paused && !s.PausedUntil.IsZero() {
		return Invalid(CodeBadValue, "paused_until", "requires paused: true; set that, or omit this field")
	}
	if !s.Paused && s.PauseReason != "" {
		return Invalid(CodeBadValue, "pause_reason", "requires paused: true; set that, or omit this field")
	}

	return checkCharacters("pause_reason", s.PauseReason)
}

// Validate checks that exactly one action is set, and its fields.
func (a Action) Validate() (err error) {
	checkRanges(reflect.ValueOf(a), actionFields(), func(problem error) bool {
		err = problem
		return false
	})
	if err != nil {
		return err
	}

	var kinds []string
	for _, k := range []struct {
		name string
		set  bool
	}{{KindProcess, a.Process != nil}, {KindHTTP, a.HTTP != nil}, {KindNoop, a.Noop != nil}, {KindWorkflow, a.Workflow != nil}} {
		if k.set {
			kinds = append(kinds, k.name)
		}
	}

	switch {
	case len(kinds) == 0:
		return Invalid(CodeRequired, "action", "is required: process, http, noop or workflow")
	case len(kinds) > 1:
		return Invalid(CodeBadValue, "action", "has both %s and %s; exactly one is allowed", kinds[0], kinds[1])
	case a.Process != nil:
		return a.Process.validate()
	case a.HTTP != nil:
		return a.HTTP.validate()
	case a.Workflow != nil:
		return a.Workflow.validate()
	}

	return nil
}

// validate checks the fields of a process.
func (p *Process) validate() error {
	const field = "action.process"

	if (len(p.Command) == 0) == (p.Shell == "") {
		return Invalid(CodeRequired, field, "requires either command (a list) or shell (a line)")
	}
	if len(p.Command) > 0 && p.Command[0] == "" {
		return Invalid(CodeRequired, field+".command[0]", "must not be empty: it is the program")
	}

	for i, arg := range p.Command {
		if err := checkArg(fmt.Sprintf("%s.command[%d]", field, i), arg); err != nil {
			return err
		}
	}

	if err := checkArg(field+".shell", p.Shell); err != nil {
		return err
	}
	if err := CheckEnv(field+".env", p.Env); err != nil {
		return err
	}
	if err := checkEnvFrom(field+".env_from", p.EnvFrom); err != nil {
		return err
	}
	if p.Stdin != nil {
		if err := p.Stdin.validate(field + ".stdin"); err != nil {
			return err
		}
	}
	if p.Dir != "" && (!filepath.IsAbs(p.Dir) || strings.ContainsRune(p.Dir, 0) || len(p.Dir) > 4095) {
		return Invalid(CodeBadValue, field+".dir", "%s is not an absolute path", Quote(p.Dir))
	}
	if len(p.User) > 256 || strings.ContainsAny(p.User, "\x00:\n /") {
		return Invalid(CodeBadValue, field+".user", "%s is not the name of a user", Quote(p.User))
	}
	if err := p.validateConfinement(field); err != nil {
		return err
	}

	return checkSize(field, p)
}

// checkSize checks the size of v in its stored form.
func checkSize(field string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return Invalid(CodeBadValue, field, "%s", err)
	}
	if len(b) > MaxAction {
		return Invalid(CodeTooLong, field, "is %d bytes as JSON; at most %d are allowed", len(b), MaxAction)
	}

	return nil
}

// CheckEnv checks environment variables: their names, and whether the kernel accepts them.
func CheckEnv(field string, env map[string]string) error {
	if len(env) > MaxEnv {
		return Invalid(CodeTooMany, field, "has %d variables; at most %d are allowed", len(env), MaxEnv)
	}

	for _, name := range slices.Sorted(maps.Keys(env)) {
		if err := checkEnvName(field, name); err != nil {
			return err
		}
		if err := checkArg(field+"."+name, env[name]); err != nil {
			return err
		}
	}

	return checkSize(field, env)
}

// checkEnvName checks the name of an environment variable.
func checkEnvName(field, name string) error {
	switch {
	case name == "":
		return Invalid(CodeBadEnv, field, "contains a variable without a name")
	case strings.ContainsAny(name, "=\x00") || len(name) > 256:
		return Invalid(CodeBadEnv, field, "%s is not a variable name: no '=' and no NUL, at most 256 bytes", Quote(name))
	case strings.HasPrefix(name, "CARILLON_"):
		return Invalid(CodeBadEnv, field, "%s: names that begin with CARILLON_ are set by Carillon", Quote(name))
	}

	return nil
}

// checkArg checks a string that is passed to a program.
func checkArg(field, v string) error {
	if strings.ContainsRune(v, 0) {
		return Invalid(CodeBadValue, field, "contains a NUL byte, which no program can receive")
	}
	if len(v) > MaxArg {
		return Invalid(CodeTooLong, field, "is %d bytes long; at most %d are allowed", len(v), MaxArg)
	}

	return nil
}

// validate checks the missed policy.
func (m MissedPolicy) validate() error {
	return checkDuration("missed.window", m.Window, m.Grace, MaxTimeout)
}

// validate checks the retry policy.
func (r Retry) validate() error {
	if len(r.ExitCodes) > 0 && !slices.Contains(r.On, Failed) {
		return Invalid(CodeBadValue, "retry.exit_codes", "apply only to failed attempts, but retry.on does not contain %s", Failed)
	}
	return nil
}

// validate checks the target.
func (t Target) validate() error {
	if _, err := ParseSelector(t.Selector); err != nil {
		return Under("target.selector", err)
	}
	if err := t.validateStrategy(); err != nil {
		return err
	}

	return t.validateFan()
}

// Under prepends a field to the field of an *Error, or of several that errors.Join has joined. It returns other errors unchanged.
func Under(field string, err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // wrapped errors have no field of this document
		var all []error
		for _, one := range joined.Unwrap() {
			if _, ok := one.(*Error); !ok {
				return err
			}
			all = append(all, Under(field, one))
		}

		return errors.Join(all...)
	}

	e, ok := err.(*Error)
	if !ok {
		return err
	}

	inner := *e
	switch {
	case inner.Field == "":
		inner.Field = field
	case strings.HasPrefix(inner.Field, "["):
		inner.Field = field + inner.Field
	default:
		inner.Field = field + "." + inner.Field
	}

	return &inner
}

// CheckLabels checks the labels of a task or a node.
func CheckLabels(field string, labels map[string]string) error {
	if len(labels) > MaxLabels {
		return Invalid(CodeTooMany, field, "has %d labels; at most %d are allowed", len(labels), MaxLabels)
	}

	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if err := checkLabelKey(k); err != nil {
			return Under(field, err)
		}
		if err := checkLabelValue(labels[k]); err != nil {
			return Under(field+"."+k, err)
		}
	}

	return nil
}

// The forms of the key and the value of a label.
var (
	labelKey   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`)
	labelValue = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$`)
)

// checkLabelKey checks the key of a label.
func checkLabelKey(k string) error {
	if len(k) > MaxLabel || !labelKey.MatchString(k) {
		return Invalid(CodeBadLabel, "", "%s is not a label key: letters, digits, '.', '_', '-' and '/', at most %d bytes%s",
			Quote(k), MaxLabel, allowedInstead(reshapeName(k, "._-/", MaxLabel)))
	}
	return nil
}

// checkLabelValue checks the value of a label.
func checkLabelValue(v string) error {
	if len(v) > MaxLabel || !labelValue.MatchString(v) {
		return Invalid(CodeBadLabel, "", "%s is not a label value: letters, digits, '.', '_' and '-', at most %d bytes%s",
			Quote(v), MaxLabel, allowedInstead(reshapeName(v, "._-", MaxLabel)))
	}
	return nil
}

// allowedInstead returns the end of a message about an invalid name, with a similar valid one.
func allowedInstead(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf("; %s would be allowed", Quote(name))
}

// checkText checks the length and the characters of free text.
func checkText(field, s string, most int) error {
	if len(s) > most {
		return Invalid(CodeTooLong, field, "is %d bytes long; at most %d are allowed", len(s), most)
	}
	return checkCharacters(field, s)
}

// checkCharacters checks the characters of free text.
func checkCharacters(field, s string) error {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }) {
		return Invalid(CodeBadValue, field, "contains control characters or is not UTF-8")
	}

	return nil
}

// checkDuration checks that a duration is in a range, inclusive.
func checkDuration(field string, d, low, high Duration) error {
	if d < low || d > high {
		return Invalid(CodeOutOfRange, field, "%s is not between %s and %s", d, low, high)
	}
	return nil
}
