package task

import (
	"path"
	"strings"
	"time"
)

// Validate checks a new silence. now is when it begins.
func (s *AlertSilence) Validate(now time.Time) error {
	switch {
	case s.Glob == "" && strings.TrimSpace(s.Selector) == "":
		return Invalid(CodeRequired, "glob", "is required, unless selector is set: name the tasks whose alerts are silenced, * for all of the namespace")
	case s.Glob != "" && s.Selector != "":
		return Invalid(CodeBadValue, "glob", "cannot be combined with selector")
	case s.Glob != "":
		if err := checkSilencedNames(s.Glob); err != nil {
			return err
		}
	default:
		if _, err := ParseSelector(s.Selector); err != nil {
			return Under("selector", err)
		}
	}

	switch lasts := s.Until.Sub(now); {
	case s.Until.IsZero():
		return Invalid(CodeRequired, "until", "is required, unless for is set: a silence must end")
	case lasts <= 0:
		return Invalid(CodeBadTime, "until", "%s has passed", s.Until.Format(time.RFC3339))
	case lasts > MaxSilence.Std():
		return Invalid(CodeOutOfRange, "until", "%s is more than %s from now; a silence lasts at most %s", s.Until.Format(time.RFC3339), MaxSilence, MaxSilence)
	}

	if strings.TrimSpace(s.Reason) == "" {
		return Invalid(CodeRequired, "reason", "is required; users see it when they ask why nobody was notified")
	}

	return checkText("reason", s.Reason, MaxReason)
}

// checkSilencedNames checks the glob of a silence.
func checkSilencedNames(glob string) error {
	if len(glob) > MaxName {
		return Invalid(CodeTooLong, "glob", "%s is %d bytes long; at most %d are allowed", Quote(glob), len(glob), MaxName)
	}
	if strings.Contains(glob, "/") {
		return Invalid(CodeBadValue, "glob", "%s contains a slash; a silence is about the tasks of one namespace, and names them without it", Quote(glob))
	}
	if _, err := path.Match(glob, ""); err != nil {
		return Invalid(CodeBadValue, "glob", "%s is not a pattern; use *, ? and [a-z]", Quote(glob))
	}

	return nil
}

// NamesOneTask reports whether the silence is about the task with one name.
func (s *AlertSilence) NamesOneTask() bool {
	return s.Glob != "" && !strings.ContainsAny(s.Glob, `*?[\`)
}

// What returns the tasks that the silence is about, as commands take them: a glob, or a selector.
func (s *AlertSilence) What() string { return s.Glob + s.Selector }
