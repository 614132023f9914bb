package task

import (
	"regexp"
	"slices"
	"strconv"
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

// Equalities returns the labels that everything has that the selector matches: those that it compares with a single value.
func (s Selector) Equalities() map[string]string {
	labels := map[string]string{}
	for i := range s {
		if t := &s[i]; !t.not && t.order == "" && len(t.values) == 1 {
			labels[t.key] = t.values[0]
		}
	}

	return labels
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

// isFact reports whether a key is the name of a fact.
func isFact(key string) bool {
	switch key {
	case FactCPUs, FactMemory, FactMemoryFree, FactDisk, FactDiskFree, FactLoad1, FactLoad5, FactLoad15:
		return true
	}
	return false
}

// parseComparison parses a comparison such as "disk_free > 10Gi".
func parseComparison(key, order, text string) (term, error) {
	v, ok := parseNumber(text)
	if !ok {
		return term{}, Invalid(CodeBadSelector, "", "%s is not a number to compare %s with: use 4, 0.5, 10Gi or 500M%s",
			Quote(text), Quote(key), meantReverse(key, order, text))
	}

	if fact := meantFact(key); fact != "" {
		return term{}, Invalid(CodeBadSelector, "", "%s is not a fact of nodes; did you mean %s?", Quote(key), fact)
	}

	return term{key: key, order: order, number: v}, nil
}

// ComparesInSelector reports whether a selector contains comparisons, without parsing it.
func ComparesInSelector(text string) bool { return strings.ContainsAny(text, "<>") }

// compareNumber reports whether a value satisfies the comparison.
func (t *term) compareNumber(v float64) bool {
	switch t.order {
	case ">":
		return v > t.number
	case ">=":
		return v >= t.number
	case "<":
		return v < t.number
	}

	return v <= t.number
}

// parseNumber parses a non-negative number, or a size. It must be fast, because the labels of nodes are parsed
// for each run.
func parseNumber(text string) (float64, bool) {
	if text == "" || text[0] < '0' || text[0] > '9' {
		return 0, false
	}

	if last := text[len(text)-1]; last >= '0' && last <= '9' {
		if strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' }) >= 0 || len(text) > 22 {
			return 0, false
		}
		v, err := strconv.ParseFloat(text, 64)
		return v, err == nil
	}

	v, err := ParseSize("", text)
	return float64(v), err == nil
}

// meantReverse returns the end of a message about a reversed comparison such as "10Gi < disk_free".
func meantReverse(key, order, text string) string {
	if _, ok := parseNumber(key); !ok || !slices.Contains(FactNames(), text) {
		return ""
	}
	turned := map[string]string{">": "<", ">=": "<=", "<": ">", "<=": ">="}[order]
	return "; did you mean " + Quote(text+" "+turned+" "+key) + "?"
}

// meantFact returns the fact that a key with another spelling means, such as free-disk or diskFree. Other keys
// are labels.
func meantFact(key string) string {
	if isFact(key) {
		return ""
	}

	spelt := normalizeKey(key)

	for _, name := range FactNames() {
		if base, free := strings.CutSuffix(name, "_free"); spelt == normalizeKey(name) || free && spelt == "free"+base {
			return name
		}
	}

	return ""
}

// Facts are measurements of a node's host. A fact that the node cannot measure is absent, and a selector that
// compares it does not match.
type Facts struct {
	CPUs       int      `json:"cpus,omitempty" doc:"CPUs that the daemon may use: the whole CPUs of a cgroup quota, at least 1."`
	HostCPUs   int      `json:"host_cpus,omitempty" doc:"CPUs of the machine, to which the load refers; only if they are more than cpus."`
	Memory     int64    `json:"memory,omitempty" doc:"The memory of the machine in bytes, or the limit of the control group of the daemon if that is less."`
	MemoryFree *int64   `json:"memory_free,omitempty" doc:"How many bytes are available without swapping."`
	Disk       int64    `json:"disk,omitempty" doc:"The size of the file system with the data directory, in bytes."`
	DiskFree   *int64   `json:"disk_free,omitempty" doc:"How many of these bytes are available to users other than root."`
	Load1      *float64 `json:"load1,omitempty" doc:"The load average over one minute, of the whole machine."`
	Load5      *float64 `json:"load5,omitempty" doc:"The load average over 5 minutes."`
	Load15     *float64 `json:"load15,omitempty" doc:"The load average over 15 minutes."`
}

// The names of facts in selectors and settings.
const (
	FactCPUs       = "cpus"
	FactMemory     = "memory"
	FactMemoryFree = "memory_free"
	FactDisk       = "disk"
	FactDiskFree   = "disk_free"
	FactLoad1      = "load1"
	FactLoad5      = "load5"
	FactLoad15     = "load15"
)

// FactNames returns the facts of a node that a selector can compare.
func FactNames() []string {
	return []string{FactCPUs, FactMemory, FactMemoryFree, FactDisk, FactDiskFree, FactLoad1, FactLoad5, FactLoad15}
}

// Fact returns the value of a fact, and false if it is not known. f may be nil.
func (f *Facts) Fact(name string) (float64, bool) {
	if f == nil {
		return 0, false
	}

	switch name {
	case FactCPUs:
		return float64(f.CPUs), f.CPUs > 0
	case FactMemory:
		return float64(f.Memory), f.Memory > 0
	case FactMemoryFree:
		return measuredValue(f.MemoryFree)
	case FactDisk:
		return float64(f.Disk), f.Disk > 0
	case FactDiskFree:
		return measuredValue(f.DiskFree)
	case FactLoad1:
		return measuredValue(f.Load1)
	case FactLoad5:
		return measuredValue(f.Load5)
	case FactLoad15:
		return measuredValue(f.Load15)
	}

	return 0, false
}

// measuredValue returns the value of a fact that may be absent.
func measuredValue[T int64 | float64](v *T) (float64, bool) {
	if v == nil {
		return 0, false
	}
	return float64(*v), true
}
