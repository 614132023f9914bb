package task

import (
	"regexp"
	"slices"
	"strings"
)

// Selector is a parsed selector over labels and facts. All of its terms must hold.
type Selector []term

// term is one condition of a selector.
type term struct {
	key    string   // the label or fact
	values []string // the accepted values; nil: the label must only exist
	not    bool     // negates the condition

	order  string // >, >=, < or <= for a comparison with number; "" otherwise
	number float64
}

// Matches reports whether labels satisfy every term. An empty selector matches everything. As in Kubernetes, "k
// != v" and "k notin (…)" also hold if the label does not exist. A comparison does not hold then, nor for a
// label that is not a number.
func (s Selector) Matches(labels map[string]string) bool { return s.matchesLabels(labels, nil) }

// Accepts reports whether a node satisfies every term. A comparison uses the fact of that name, or the label if
// there is no such fact.
func (s Selector) Accepts(n *Node) bool { return s.matchesLabels(n.Labels, n.Facts) }

// matchesLabels reports whether all terms hold.
func (s Selector) matchesLabels(labels map[string]string, facts *Facts) bool {
	for i := range s {
		if !s[i].matchesLabels(labels, facts) {
			return false
		}
	}

	return true
}

// matchesLabels reports whether the term holds.
func (t *term) matchesLabels(labels map[string]string, facts *Facts) bool {
	if t.order != "" {
		v, ok := facts.Fact(t.key)
		if !ok && !isFact(t.key) {
			v, ok = parseNumber(labels[t.key])
		}
		return ok && t.compareNumber(v)
	}

	v, ok := labels[t.key]
	if t.values != nil {
		ok = ok && slices.Contains(t.values, v)
	}

	return ok != t.not
}

// Compares reports whether the selector compares facts, so that a node may match at one time and not at another
// with the same labels.
func (s Selector) Compares() bool {
	return slices.ContainsFunc(s, func(t term) bool { return t.order != "" && isFact(t.key) })
}

// termForms matches one term in any of its forms.
var termForms = regexp.MustCompile(`^\s*(?:` +
	`(!?)\s*([^\s=!(),<>]+)` + // exists, or not
	`|([^\s=!(),<>]+)\s*(==?|!=)\s*([^\s=!(),<>]*)` + // equal, or not
	`|([^\s=!(),<>]+)\s+(in|notin)\s*\(([^()<>]*)\)` + // one of, or none of
	`|([^\s=!(),<>]+)\s*([<>]=?)\s*([^\s=!(),<>]+)` + // more, or less
	`)\s*$`)

// ParseSelector parses terms separated by commas: "k = v", "k != v", "k in (a, b)", "k notin (a, b)", "k" (the
// label exists), "!k" (it does not exist), and comparisons with >, >=, < and <=. A number may have a unit of
// bytes: 10Gi.
func ParseSelector(s string) (Selector, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	if len(s) > MaxSelector {
		return nil, Invalid(CodeTooLong, "", "%s is longer than %d bytes", Quote(s), MaxSelector)
	}

	var sel Selector
	for _, part := range splitTerms(s) {
		m := termForms.FindStringSubmatch(part)
		if m == nil {
			return nil, Invalid(CodeBadSelector, "",
				"%s is not a term: use k = v, k != v, k > n, k in (a, b), k notin (a, b), k or !k%s", Quote(part), meantTerm(part))
		}

		var t term
		var err error

		switch {
		case m[2] != "":
			t = term{key: m[2], not: m[1] == "!"}
		case m[3] != "":
			t = term{key: m[3], values: []string{m[5]}, not: m[4] == "!="}
		case m[6] != "":
			t = term{key: m[6], not: m[7] == "notin", values: []string{}}
			for v := range strings.SplitSeq(m[8], ",") {
				t.values = append(t.values, strings.TrimSpace(v))
			}
		default:
			if t, err = parseComparison(m[9], m[10], m[11]); err != nil {
				return nil, err
			}
		}

		if err := checkLabelKey(t.key); err != nil {
			return nil, err
		}

		for _, v := range t.values {
			if err := checkLabelValue(v); err != nil {
				return nil, err
			}
		}

		sel = append(sel, t)
	}

	return sel, nil
}

// termTypo is a common way to write a term incorrectly, with the replacement that corrects it.
type termTypo struct {
	form       *regexp.Regexp
	correction string
}

// commonTypos are applied one after another, so the order matters.
var commonTypos = []termTypo{
	{regexp.MustCompile(`\s*(?:=>|≥)\s*`), " >= "},
	{regexp.MustCompile(`\s*(?:=<|≤)\s*`), " <= "},
	{regexp.MustCompile(`([<>]=?\s*[0-9.]+)\s+([kKMGT]i?[bB]?)\b`), "$1$2"},
	{regexp.MustCompile(`(?i)\b(cpus|memory|memory_free|disk|disk_free|load1|load5|load15)\s+(?:is\s+)?(?:over|above|gt|more\s+than)\s+`), "$1 > "},
	{regexp.MustCompile(`(?i)\b(cpus|memory|memory_free|disk|disk_free|load1|load5|load15)\s+(?:is\s+)?(?:under|below|lt|less\s+than)\s+`), "$1 < "},
	{regexp.MustCompile(`(?i)^\s*(disk|memory)\s+free\s*([<>])`), "${1}_free $2"},
	{regexp.MustCompile(`(?i)^\s*free\s+(disk|memory)\s*([<>])`), "${1}_free $2"},
	{regexp.MustCompile(`(?i)\s+(and|&&?)\s+`), ", "},
	{regexp.MustCompile(`(?i)^\s*not\s+`), "!"},
	{regexp.MustCompile(`(?i)\s+not\s+in\s+`), " notin "},
	{regexp.MustCompile(`\s*(<>|~=|!==)\s*`), " != "},
	{regexp.MustCompile(`\s*(:|===|=~)\s*`), " = "},
	{regexp.MustCompile(`(\s)(?i:(in|notin))\s*[\[{]([^()\[\]{}]*)[\]}]`), "$1$2 ($3)"},
	{regexp.MustCompile(`(\s)(?i:(in|notin))\s+([^()\s]+)\s*$`), "$1$2 ($3)"},
	{regexp.MustCompile(`["']`), ""},
	{regexp.MustCompile(`([A-Za-z0-9)])\s+([!A-Za-z0-9._/-]+\s*!?=)`), "$1, $2"},
}

// meantTerm returns the end of a message about an invalid term: the term or terms that were probably meant, or
// "".
func meantTerm(part string) string {
	if len(part) > maxTyped {
		return ""
	}

	text := strings.TrimSpace(part)
	for _, s := range commonTypos {
		text = s.form.ReplaceAllString(text, s.correction)
		if slices.ContainsFunc(splitTerms(text), func(term string) bool { return !termForms.MatchString(term) }) {
			continue
		}
		if _, err := ParseSelector(text); err == nil {
			return "; did you mean " + Quote(text) + "?"
		}
	}

	return ""
}

// splitTerms splits at commas outside of parentheses.
func splitTerms(s string) []string {
	var parts []string
	depth, start := 0, 0
	for i, r := range s {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, s[start:i])
				start = i + 1
			}
		}
	}

	return append(parts, s[start:])
}
