package task

import (
	"regexp"
	"slices"
	"strings"
)

// Selector is a parsed label selector: all of its terms must hold.
type Selector []term

type term struct {
	key    string
	values []string // nil: the key's presence alone is asked
	not    bool
}

// Matches reports whether labels satisfy every term. An empty selector matches all.
// As elsewhere in the field, "k != v" and "k notin (…)" also hold without the key.
func (s Selector) Matches(labels map[string]string) bool {
	for _, t := range s {
		v, ok := labels[t.key]
		if t.values != nil {
			ok = ok && slices.Contains(t.values, v)
		}
		if ok == t.not {
			return false
		}
	}
	return true
}

var termForms = regexp.MustCompile(`^\s*(?:` +
	`(!?)\s*([^\s=!(),]+)` + // exists, or not
	`|([^\s=!(),]+)\s*(==?|!=)\s*([^\s=!(),]*)` + // equal, or not
	`|([^\s=!(),]+)\s+(in|notin)\s*\(([^()]*)\)` + // one of, or none of
	`)\s*$`)

// ParseSelector reads terms separated by commas: "k = v", "k != v", "k in (a, b)",
// "k notin (a, b)", "k" (the label exists) and "!k" (it does not).
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
				"%s is not a term: write k = v, k != v, k in (a, b), k notin (a, b), k or !k%s", Quote(part), meantTerm(part))
		}
		var t term
		switch {
		case m[2] != "":
			t = term{key: m[2], not: m[1] == "!"}
		case m[3] != "":
			t = term{key: m[3], values: []string{m[5]}, not: m[4] == "!="}
		default:
			t = term{key: m[6], not: m[7] == "notin", values: []string{}}
			for v := range strings.SplitSeq(m[8], ",") {
				t.values = append(t.values, strings.TrimSpace(v))
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

// A slip is a way in which people write terms that are none, and what they mean.
type slip struct {
	form  *regexp.Regexp
	meant string
}

var slips = []slip{
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

// meantTerm is the end of a message about a term that is none: what was probably
// meant, if that is one or several.
func meantTerm(part string) string {
	if len(part) > maxTyped {
		return ""
	}
	text := strings.TrimSpace(part)
	for _, s := range slips {
		text = s.form.ReplaceAllString(text, s.meant)
		if slices.ContainsFunc(splitTerms(text), func(term string) bool { return !termForms.MatchString(term) }) {
			continue
		}
		if _, err := ParseSelector(text); err == nil {
			return "; did you mean " + Quote(text) + "?"
		}
	}
	return ""
}

// splitTerms splits at the commas that stand outside parentheses.
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
