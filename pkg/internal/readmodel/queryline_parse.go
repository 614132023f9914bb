package readmodel

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// parseTerm parses one term: -KEY:REST, KEY~REST, or a word, which the name must contain.
func parseTerm(w queryWord) (t queryTerm, err error) {
	rest, negated := w.trimPrefix("-")
	t.negated = negated

	sign := rest.indexAny(":~")
	if sign < 0 {
		t.key, t.form = "name", formContains
		return t, parseWord(&t, rest)
	}

	t.key = rest.text[:sign]
	if rest.text[sign] == '~' {
		t.form = formContains
	}

	i := slices.IndexFunc(queryKeys, func(k queryKey) bool { return k.name == t.key })
	if meant := keySynonyms[t.key]; meant != "" {
		return t, task.Invalid(task.CodeBadValue, "", "%s is not one of %s; did you mean %s?", task.Quote(t.key), strings.Join(QueryKeys(), ", "), meant)
	}
	if i < 0 {
		return t, task.NoneOf(task.CodeBadValue, "", t.key, QueryKeys()...)
	}

	if t.form == formContains && t.key != "name" {
		return t, task.Invalid(task.CodeBadValue, "", "only name can be used with ~; did you mean %s:?", t.key)
	}

	return t, queryKeys[i].parse(&t, rest.slice(sign+1, len(rest.text)))
}

// keySynonyms are words of other tools for keys.
var keySynonyms = map[string]string{"status": "state", "result": "state", "tag": "label", "labels": "label", "ns": "namespace", "task": "name"}

// parseWord parses a term without a key. It refuses what was probably meant as another term, because no name contains
// such characters.
func parseWord(t *queryTerm, w queryWord) error {
	at := w.indexAny("<>=!*?[")
	if at < 0 {
		return parseNames(t, w)
	}

	before, _, _ := strings.Cut(w.text[:at], " ")
	switch known := slices.Contains(QueryKeys(), before); {
	case known && strings.IndexByte("<>=", w.text[at]) >= 0:
		return task.Invalid(task.CodeBadValue, "", "a key is followed by a colon; did you mean %s:%s?", before, w.text[at:])
	case w.text[at] == '!' && at == 0:
		return task.Invalid(task.CodeBadValue, "", "a term is negated with -; did you mean -%s?", shortenTerm(w.text[1:]))
	case strings.IndexByte("=!", w.text[at]) >= 0:
		return task.Invalid(task.CodeBadValue, "", "no name contains %q; did you mean label:%s?", w.text[at], shortenTerm(w.text))
	case strings.IndexByte("*?[", w.text[at]) >= 0:
		return task.Invalid(task.CodeBadValue, "", "a word is not a pattern; did you mean name:%s?", shortenTerm(w.text))
	}

	return task.Invalid(task.CodeBadValue, "", "no name contains %q", w.text[at])
}

// shortenTerm shortens a text for the end of a message.
func shortenTerm(s string) string { return strings.Trim(task.Quote(s), `"`) }

// setValues sets the alternatives of a term. None may be empty.
func (t *queryTerm) setValues(w queryWord) error {
	t.values = w.split()
	if slices.Contains(t.values, "") {
		return task.Invalid(task.CodeRequired, "", "a value is missing")
	}

	return nil
}

// parseNames parses name:GLOB,GLOB and name~TEXT,TEXT. All names are in lower case.
func parseNames(t *queryTerm, w queryWord) error {
	if t.form == formValues {
		return parseGlobs(t, w, 1)
	}
	if err := t.setValues(w); err != nil {
		return err
	}

	for i, v := range t.values {
		t.values[i] = strings.ToLower(v)
	}

	return nil
}

// parseNamespaces parses namespace:GLOB,GLOB.
func parseNamespaces(t *queryTerm, w queryWord) error { return parseGlobs(t, w, 0) }

// maxGlob is the maximum length of a pattern.
const maxGlob = 4 * task.MaxName

// parseGlobs parses patterns with at most this number of slashes.
func parseGlobs(t *queryTerm, w queryWord, slashes int) error {
	if err := t.setValues(w); err != nil {
		return err
	}

	for _, p := range t.values {
		if len(p) > maxGlob {
			return task.Invalid(task.CodeTooLong, "", "%s is longer than %d bytes", task.Quote(p), maxGlob)
		}
		if _, err := path.Match(p, ""); err != nil || strings.Count(p, "/") > slashes {
			return task.Invalid(task.CodeBadValue, "", "%s is not a pattern of names: use *, ? and [a-z]", task.Quote(p))
		}
	}

	return nil
}

// parseStates parses state:STATE,STATE.
func parseStates(t *queryTerm, w queryWord) error {
	if err := t.setValues(w); err != nil {
		return err
	}

	for _, v := range t.values {
		if v == "ok" { // lists show it for a task in none of these states
			return task.Invalid(task.CodeBadValue, "", "ok is not a state; did you mean -state:failing,overdue,paused, or state:succeeded, if the last run counts?")
		}
		if !slices.Contains(queryStates, v) {
			return task.NoneOf(task.CodeBadValue, "", v, queryStates...)
		}
	}

	return nil
}

// anyAlert is the value of a term for tasks with any open alert.
const anyAlert = "any"

// queryAlerts are the values of alert:KIND, in the order of the documentation.
var queryAlerts = append([]string{anyAlert}, task.TaskAlertKindNames()...)

// parseAlerts parses alert:KIND,KIND.
func parseAlerts(t *queryTerm, w queryWord) error {
	if err := t.setValues(w); err != nil {
		return err
	}

	for _, v := range t.values {
		if !slices.Contains(queryAlerts, v) {
			return task.NoneOf(task.CodeBadValue, "", v, queryAlerts...)
		}
	}

	return nil
}

// workflowAction is the only action that a row knows.
const workflowAction = "workflow"

// parseActions parses action:workflow.
func parseActions(t *queryTerm, w queryWord) error {
	if err := t.setValues(w); err != nil {
		return err
	}

	for _, v := range t.values {
		if v != workflowAction {
			return task.Invalid(task.CodeBadValue, "", "%s: use %s, the only action that can be looked for", task.Quote(v), workflowAction)
		}
	}

	return nil
}

// parseReceivers parses notify:NAMESPACE/NAME,NAMESPACE/NAME.
func parseReceivers(t *queryTerm, w queryWord) error {
	if err := t.setValues(w); err != nil {
		return err
	}

	for _, v := range t.values {
		namespace, name, _ := strings.Cut(v, "/")
		if task.CheckName("", namespace) != nil || task.CheckName("", name) != nil {
			return task.Invalid(task.CodeBadValue, "", "%s is not a receiver: use NAMESPACE/NAME, such as ops/slack", task.Quote(v))
		}
	}

	return nil
}

// parseLabel parses label:KEY,KEY, label:KEY=VALUE,VALUE and label:KEY!=VALUE,VALUE. A value may be empty.
func parseLabel(t *queryTerm, w queryWord) error {
	keys := w.split()

	if at := w.indexAny("="); at >= 0 {
		t.form, t.label = formLabelIs, w.text[:at]
		if key, not := strings.CutSuffix(t.label, "!"); not {
			t.form, t.label = formLabelIsNot, key
		}

		keys = []string{t.label}
		t.values = w.slice(at+1, len(w.text)).split()
	} else {
		t.values = keys
	}

	for _, key := range keys {
		if key == "" {
			return task.Invalid(task.CodeRequired, "", "the key of the label is missing")
		}
		if err := task.CheckLabels("", map[string]string{key: ""}); err != nil {
			return err
		}
	}

	if t.form == formValues {
		return nil
	}

	for _, v := range t.values {
		if err := task.CheckLabels("", map[string]string{t.label: v}); err != nil {
			if strings.ContainsAny(v, "=!") {
				return task.Invalid(task.CodeBadValue, "", "%s is not a label value; did you mean two terms, label:%s and label:%s?", task.Quote(v), t.label, shortenTerm(v))
			}
			return err
		}
	}

	return nil
}

// parseSelector parses selector:SELECTOR, a label selector, which is not split at commas.
func parseSelector(t *queryTerm, w queryWord) error {
	if strings.TrimSpace(w.text) == "" {
		return task.Invalid(task.CodeRequired, "", "a label selector is missing")
	}

	t.values = []string{w.text}
	_, err := task.ParseSelector(w.text)

	return err
}

// operator is how an amount is compared.
type operator uint8

const (
	opEqual operator = iota
	opLess
	opAtMost
	opMore
	opAtLeast
)

// operators are the signs of the operators. Longer ones come before those that they begin with.
var operators = []struct {
	sign string
	op   operator
}{{"<=", opAtMost}, {">=", opAtLeast}, {"<", opLess}, {">", opMore}, {"=", opEqual}}

// String returns the sign of the operator; that of opEqual is not needed.
func (o operator) String() string {
	for _, known := range operators {
		if known.op == o && o != opEqual {
			return known.sign
		}
	}

	return ""
}

// holdsFor reports whether v compares so with limit.
func (o operator) holdsFor(v, limit int64) bool {
	switch o {
	case opLess:
		return v < limit
	case opAtMost:
		return v <= limit
	case opMore:
		return v > limit
	case opAtLeast:
		return v >= limit
	}

	return v == limit
}

// parseOperator parses a sign at the beginning. found is false if there is none.
func parseOperator(w queryWord) (op operator, rest queryWord, found bool) {
	for _, known := range operators {
		if rest, ok := w.trimPrefix(known.sign); ok {
			return known.op, rest, true
		}
	}

	return opEqual, w, false
}

// none is the value for tasks that have no such time.
const none = "none"

// maxAge is the maximum of a duration that is compared with the distance of a time.
const maxAge = 100 * 365 * 24 * time.Hour

// parseTimeOrNone parses KEY:none, or a comparison with how far a time is away.
func parseTimeOrNone(t *queryTerm, w queryWord) error {
	if w.text == none {
		t.values = []string{none}
		return nil
	}

	return parseSpanTerm(t, w, maxAge, " or "+t.key+":none")
}

// parseMeasure parses a comparison with something that was measured, which a row stores up to a limit.
func parseMeasure(t *queryTerm, w queryWord) error {
	return parseSpanTerm(t, w, (math.MaxInt32 * time.Millisecond).Truncate(24*time.Hour), "")
}

// parseSpanTerm parses a comparison with a duration up to most. others is the end of a message: what else is allowed.
func parseSpanTerm(t *queryTerm, w queryWord, most time.Duration, others string) error {
	op, rest, found := parseOperator(w)
	if rest.text == "" {
		return task.Invalid(task.CodeRequired, "", "a duration is missing: use %s:<1h, %s:>1h%s", t.key, t.key, others)
	}

	d, err := task.ParseDuration("", rest.text)
	ok := err == nil && d >= 0
	switch {
	case err != nil && found:
		return err
	case !ok && found:
		return task.Invalid(task.CodeBadDuration, "", "%s is not a duration, such as 90s, 10m, 1h30m or 2d", task.Quote(rest.text))
	case !ok:
		near := ""
		if others != "" && task.Nearest(rest.text, []string{none}) != "" {
			near = "; did you mean none?"
		}
		return task.Invalid(task.CodeBadValue, "", "%s is not a comparison: use %s:<1h, %s:>1h%s%s", task.Quote(rest.text), t.key, t.key, others, near)
	case op == opEqual:
		return task.Invalid(task.CodeBadValue, "", "a duration is compared with < or >; did you mean %s:<%s?", t.key, formatSpan(d.Std().Milliseconds()))
	case d.Std() > most:
		return task.Invalid(task.CodeOutOfRange, "", "%s is greater than %s", task.Quote(rest.text), formatSpan(most.Milliseconds()))
	}

	t.form, t.compare, t.amount = formCompare, op, d.Std().Milliseconds()

	return nil
}

// formatSpan formats milliseconds so that task.ParseDuration reads them.
func formatSpan(ms int64) string {
	const day = 24 * 60 * 60 * 1000

	if ms < 2*day {
		return task.Duration(ms * int64(time.Millisecond)).String()
	}
	if rest := ms % day; rest > 0 {
		return fmt.Sprintf("%dd%s", ms/day, task.Duration(rest*int64(time.Millisecond)))
	}

	return fmt.Sprintf("%dd", ms/day)
}

// parseNumber parses a comparison with a number, which a row stores up to a limit. Without a sign, it must be equal.
func parseNumber(t *queryTerm, w queryWord) error {
	op, rest, _ := parseOperator(w)

	n, err := strconv.ParseUint(rest.text, 10, 63)
	if err != nil {
		return task.Invalid(task.CodeBadValue, "", "%s is not a whole number: use %s:>=3, %s:<3 or %s:0", task.Quote(rest.text), t.key, t.key, t.key)
	}
	if n > math.MaxUint16 {
		return task.Invalid(task.CodeOutOfRange, "", "%d is greater than %d", n, math.MaxUint16)
	}

	t.form, t.compare, t.amount = formCompare, op, int64(n)

	return nil
}

// queryMinute is how a query line writes a minute, always in UTC.
const queryMinute = "2006-01-02T15:04Z07:00"

// parseTicks parses tick:MINUTE,MINUTE.
func parseTicks(t *queryTerm, w queryWord) error {
	if err := t.setValues(w); err != nil {
		return err
	}

	for i, v := range t.values {
		at, ok := parseMinute(v)
		if !ok {
			return task.Invalid(task.CodeBadValue, "", "%s is not a minute with a zone, such as 2026-11-27T03:00Z", task.Quote(v))
		}
		t.values[i] = at.Format(queryMinute)
	}

	return nil
}

// parseMinute parses a minute.
func parseMinute(text string) (at time.Time, ok bool) {
	for _, layout := range []string{queryMinute, time.RFC3339} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC(), at.Truncate(time.Minute).Equal(at)
		}
	}

	return time.Time{}, false
}
