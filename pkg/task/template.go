package task

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Template is a text with references to values of a run, such as "/orders/${run.scheduled_time}". "$${" stands for the
// text "${".
type Template []TemplatePart

// TemplatePart is a part of a template: a text, or the name of a value.
type TemplatePart struct {
	Text string
	Ref  string // the name between "${" and "}"; "": the part is Text
}

// The prefixes of references that have a name of their own.
const (
	SecretRefPrefix = "secret:" // secret:NAME/KEY is a value of a secret of the task's namespace
	EnvRefPrefix    = "env."    // env.NAME is a variable of a manual run
	EnvBodyPrefix   = "env:"    // env:NAME as a whole body is the value of such a variable

	CauseRefPrefix    = "cause."                    // the ended run of a source that has started the run
	CauseResultPrefix = CauseRefPrefix + "results." // cause.results.NAME is one of its results
)

// templateRefs are the references without a prefix.
var templateRefs = []string{
	"run.id", "run.scheduled_time", "run.period", "run.attempt", "run.token", "task.name", "task.namespace", "node.name", "part.index", "part.count",
	"cause.task", "cause.run", "cause.state", ItemRef, ItemIndexRef, StepNameRef,
}

// ParseTemplate parses a template. An error names the reference that is unknown or not closed.
func ParseTemplate(s string) (Template, error) {
	var t Template
	addText := func(text string) {
		if n := len(t); n > 0 && t[n-1].Ref == "" {
			t[n-1].Text += text
		} else if text != "" {
			t = append(t, TemplatePart{Text: text})
		}
	}

	for s != "" {
		at := strings.Index(s, "${")
		if at < 0 {
			addText(s)
			break
		}

		if at > 0 && s[at-1] == '$' {
			addText(s[:at-1] + "${")
			s = s[at+2:]
			continue
		}

		addText(s[:at])
		ref, rest, closed := strings.Cut(s[at+2:], "}")
		if !closed {
			return nil, fmt.Errorf("%s is not closed with }", Quote(s[at:]))
		}
		if err := checkTemplateRef(ref); err != nil {
			return nil, err
		}

		t = append(t, TemplatePart{Ref: ref})
		s = rest
	}

	return t, nil
}

// checkTemplateRef checks a reference.
func checkTemplateRef(ref string) error {
	switch {
	case slices.Contains(templateRefs, ref):
		return nil
	case strings.HasPrefix(ref, SecretRefPrefix):
		_, _, err := ParseSecretRef(strings.TrimPrefix(ref, SecretRefPrefix))
		return err
	case strings.HasPrefix(ref, EnvRefPrefix):
		return CheckVariable("", strings.TrimPrefix(ref, EnvRefPrefix))
	case strings.HasPrefix(ref, CauseResultPrefix) && ResultName.MatchString(strings.TrimPrefix(ref, CauseResultPrefix)):
		return nil
	}

	if _, _, ok := ParseStepRef(ref); ok {
		return nil
	}

	return fmt.Errorf("%s is not a known value; known are %s, steps.NAME.results.NAME, %sNAME, %sNAME and %sNAME/KEY", Quote("${"+ref+"}"), strings.Join(templateRefs, ", "),
		CauseResultPrefix, EnvRefPrefix, SecretRefPrefix)
}

// ParseSecretRef splits NAME/KEY, which names a value of a secret.
func ParseSecretRef(s string) (name, key string, err error) {
	name, key, ok := strings.Cut(s, "/")
	if !ok {
		return "", "", fmt.Errorf("%s is not NAME/KEY of a secret", Quote(s))
	}
	if err := errors.Join(CheckName("", name), CheckVariable("", key)); err != nil {
		return "", "", err
	}

	return name, key, nil
}

// Expand returns the text of the template. value returns the value of a reference, already escaped for its place.
func (t Template) Expand(value func(ref string) (string, error)) (string, error) {
	var b strings.Builder

	for _, p := range t {
		if p.Ref == "" {
			b.WriteString(p.Text)
			continue
		}

		v, err := value(p.Ref)
		if err != nil {
			return "", err
		}
		b.WriteString(v)
	}

	return b.String(), nil
}
