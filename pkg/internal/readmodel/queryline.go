package readmodel

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

// The limits of a query line. They bound what matching a row costs, because a scan matches many rows.
const (
	MaxQueryLine   = 64 << 10 // bytes
	MaxQueryTerms  = 40
	MaxQueryNames  = 1000 // names and globs in the terms name:, all together
	MaxQueryValues = 100  // in all other terms together
)

// QueryLine is a parsed query line, such as
//
//	state:failed label:team=data next:<1h name~dump
//
// A row matches if all terms hold. The zero value has no terms. Matching a row allocates nothing.
//
// While the last end of a task's runs is not known (see History), terms about it are neither true nor false. Then the
// task matches neither such a term nor its negation.
type QueryLine struct{ terms []queryTerm }

// queryTerm is one term of a query line.
type queryTerm struct {
	key     string // "state", "name"; see queryKeys
	negated bool
	form    termForm
	label   string   // for formLabelIs and formLabelIsNot: the key of the label
	compare operator // for formCompare
	amount  int64    // for formCompare: milliseconds, or a number of failures
	values  []string // for all other forms: alternatives
}

// termForm is how a term is written, after its key.
type termForm uint8

const (
	formValues     termForm = iota // :VALUE,VALUE
	formContains                   // ~TEXT,TEXT
	formCompare                    // :<AMOUNT
	formLabelIs                    // :KEY=VALUE,VALUE
	formLabelIsNot                 // :KEY!=VALUE,VALUE
)

// queryKey is what may be written before the colon of a term.
type queryKey struct {
	name  string
	parse func(t *queryTerm, rest queryWord) error
	match func(t *queryTerm) matcher // nil: the term is not about a row (see QueryLine.Receivers)
	cost  int                        // of matching a row: terms with a lower cost come first
	runs  bool                       // the term says how runs ended
}

// queryKeys are all keys, in the order of the documentation.
var queryKeys = []queryKey{
	{name: "name", parse: parseNames, match: matchNames, cost: 2},
	{name: "namespace", parse: parseNamespaces, match: matchNamespaces, cost: 2},
	{name: "state", parse: parseStates, match: matchStates},
	{name: "action", parse: parseActions, match: matchActions},
	{name: "label", parse: parseLabel, match: matchLabel, cost: 1},
	{name: "selector", parse: parseSelector, match: matchSelector, cost: 1},
	{name: "next", parse: parseTimeOrNone, match: matchNext},
	{name: "tick", parse: parseTicks, match: matchTicks, cost: 3},
	{name: "last", parse: parseTimeOrNone, match: matchLast, runs: true},
	{name: "success", parse: parseTimeOrNone, match: matchSuccess, runs: true},
	{name: "duration", parse: parseMeasure, match: matchDuration, runs: true},
	{name: "lateness", parse: parseMeasure, match: matchLateness, runs: true},
	{name: "failures", parse: parseNumber, match: matchFailures, runs: true},
	{name: "alert", parse: parseAlerts, match: matchAlerts, runs: true},
	{name: receiverKey, parse: parseReceivers},
}

// receiverKey is the key of the terms that Receivers returns.
const receiverKey = "notify"

// QueryKeys returns the keys of terms, in the order of the documentation.
func QueryKeys() []string {
	names := make([]string, len(queryKeys))
	for i, k := range queryKeys {
		names[i] = k.name
	}
	return names
}

// QueryStates returns the states of terms such as state:failed.
func QueryStates() []string { return slices.Clone(queryStates) }

// keyOf returns the key of a term.
func (t *queryTerm) keyOf() *queryKey {
	i := slices.IndexFunc(queryKeys, func(k queryKey) bool { return k.name == t.key })
	return &queryKeys[i]
}

// ParseQueryLine parses a query line. The error is a *task.Error without a field, which names the term, its value and
// the rule that it breaks.
func ParseQueryLine(text string) (QueryLine, error) {
	var q QueryLine

	if len(text) > MaxQueryLine {
		return q, task.Invalid(task.CodeTooLong, "", "%s is longer than %d bytes", task.Quote(text), MaxQueryLine)
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return (r < ' ' && !isQuerySpace(r)) || r == 0x7f }) {
		return q, task.Invalid(task.CodeBadValue, "", "%s contains control characters or is not UTF-8", task.Quote(text))
	}

	words, err := splitQuery(text)
	if err != nil {
		return q, err
	}
	if len(words) > MaxQueryTerms {
		return q, task.Invalid(task.CodeTooMany, "", "%d terms; at most %d are allowed", len(words), MaxQueryTerms)
	}

	names, values := 0, 0
	for _, w := range words {
		t, err := parseTerm(w)
		if err != nil {
			return QueryLine{}, termError(w, err)
		}

		if t.isNames() {
			names += len(t.values)
		} else {
			values += len(t.values)
		}
		q.terms = append(q.terms, t)
	}

	if names > MaxQueryNames {
		return QueryLine{}, task.Invalid(task.CodeTooMany, "", "%d names; at most %d are allowed", names, MaxQueryNames)
	}
	if values > MaxQueryValues {
		return QueryLine{}, task.Invalid(task.CodeTooMany, "", "%d values; at most %d are allowed", values, MaxQueryValues)
	}

	return q, nil
}

// SelectorLine returns the query line whose only term is a label selector.
func SelectorLine(selector string) (QueryLine, error) {
	t := queryTerm{key: "selector"}
	if err := parseSelector(&t, queryWord{text: selector}); err != nil {
		return QueryLine{}, err
	}

	return QueryLine{terms: []queryTerm{t}}, nil
}

// UnmarshalText parses a query line.
func (q *QueryLine) UnmarshalText(text []byte) (err error) {
	*q, err = ParseQueryLine(string(text))
	return err
}

// MarshalText returns the query line in its canonical form.
func (q QueryLine) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// termError names the term that an error is about.
func termError(w queryWord, err error) error {
	e, ok := err.(*task.Error)
	if !ok {
		return err
	}

	return task.Invalid(e.Code, "", "term %s: %s", task.Quote(w.source), e.Message)
}

// Conditions returns the conditions of the terms about rows, the cheapest ones first.
func (q QueryLine) Conditions() []Condition {
	terms := slices.DeleteFunc(slices.Clone(q.terms), func(t queryTerm) bool { return t.key == receiverKey })
	slices.SortStableFunc(terms, func(a, b queryTerm) int { return a.keyOf().cost - b.keyOf().cost })

	list := make([]Condition, len(terms))
	for i := range terms {
		list[i] = terms[i].condition()
	}

	return list
}

// Receivers returns the conditions of the terms notify:NAMESPACE/NAME.
func (q QueryLine) Receivers() (list []ReceiverCondition) {
	for _, t := range q.terms {
		if t.key == receiverKey {
			list = append(list, ReceiverCondition{Names: t.values, None: t.negated})
		}
	}

	return list
}

// condition returns the condition of a term.
func (t *queryTerm) condition() Condition {
	match, want := t.keyOf().match(t), holds
	if t.negated {
		want = fails
	}

	return func(r *Row, now int64) bool { return match(r, now) == want }
}

// AboutRuns reports whether a term says how runs ended. Only callers who may read runs may ask this.
func (q QueryLine) AboutRuns() bool {
	return slices.ContainsFunc(q.terms, func(t queryTerm) bool {
		return t.keyOf().runs || t.key == "state" && slices.ContainsFunc(t.values, isOutcome)
	})
}

// NeedsHistory reports whether the owner of a shard must have read how runs have ended before it knows which tasks match.
func (q QueryLine) NeedsHistory() bool {
	return q.AboutRuns() || slices.ContainsFunc(q.terms, func(t queryTerm) bool { return t.key == "state" && slices.Contains(t.values, stateFailing) })
}

// isNames reports whether the term lists names or globs.
func (t *queryTerm) isNames() bool { return t.key == "name" && t.form == formValues }

// names returns the names and globs of the only term; nil if there is no term. ok is false if other tasks than those with
// such names may match.
func (q QueryLine) names() (patterns []string, ok bool) {
	switch {
	case len(q.terms) == 0:
		return nil, true
	case len(q.terms) > 1 || q.terms[0].negated || !q.terms[0].isNames():
		return nil, false
	}

	return q.terms[0].values, true
}

// ExactNames returns the tasks that match, as pairs of namespace and name, if the query line only lists their names.
// namespace is that of the list; "": all. Then each name needs a namespace, as in prod/web-1.
func (q QueryLine) ExactNames(namespace string) (tasks [][2]string, ok bool) {
	patterns, ok := q.names()
	if !ok || len(patterns) == 0 {
		return nil, false
	}

	for _, p := range patterns {
		ns, name, in := strings.Cut(p, "/")
		if !in {
			ns, name = namespace, p
		}

		if ns == "" || isGlob(p) {
			return nil, false
		}
		if namespace == "" || ns == namespace {
			tasks = append(tasks, [2]string{ns, name})
		}
	}

	return tasks, true
}

// NameRange returns the namespace and the text with which the names of the tasks begin, if all tasks with such names match,
// and no others: "web-" for name:web-*. namespace is that of the list; "": all. A prefix needs a namespace, as in
// prod/web-*.
func (q QueryLine) NameRange(namespace string) (ns, prefix string, ok bool) {
	patterns, ok := q.names()
	if !ok || len(patterns) > 1 {
		return "", "", false
	}
	if len(patterns) == 0 {
		return namespace, "", true
	}

	ns, name, in := strings.Cut(patterns[0], "/")
	if !in {
		ns, name = namespace, patterns[0]
	}

	prefix, isPrefix := strings.CutSuffix(name, "*")
	ok = isPrefix && !isGlob(ns+prefix) && (namespace == "" || ns == namespace)

	return ns, prefix, ok && (ns != "" || prefix == "")
}

// String returns the query line in its canonical form. It parses to an equal one, unless it has become longer than
// MaxQueryLine.
func (q QueryLine) String() string {
	var b strings.Builder
	for i := range q.terms {
		if i > 0 {
			b.WriteByte(' ')
		}
		q.terms[i].write(&b)
	}

	return b.String()
}

// write appends the term.
func (t *queryTerm) write(b *strings.Builder) {
	if t.negated {
		b.WriteByte('-')
	}
	b.WriteString(t.key)

	switch t.form {
	case formContains:
		b.WriteByte('~')
	case formLabelIs:
		b.WriteString(":" + t.label + "=")
	case formLabelIsNot:
		b.WriteString(":" + t.label + "!=")
	case formCompare:
		b.WriteString(":" + t.compare.String() + t.formatAmount())
	default:
		b.WriteByte(':')
	}

	for i, v := range t.values {
		if i > 0 {
			b.WriteByte(',')
		}
		writeQueryValue(b, v)
	}
}

// formatAmount formats the amount of a comparison.
func (t *queryTerm) formatAmount() string {
	if t.key == "failures" {
		return strconv.FormatInt(t.amount, 10)
	}
	return formatSpan(t.amount)
}

// queryWord is a part of a query line without its quotes. Characters that were quoted have no special meaning.
type queryWord struct {
	source string // as it was written
	text   string
	quoted []bool // which bytes of text were quoted; nil: none
}

// isQuerySpace reports whether a character separates terms.
func isQuerySpace(r rune) bool { return r == ' ' || r == '\t' || r == '\n' || r == '\r' }

// splitQuery splits a query line at white space outside of quotes. Within quotes, \" is a quote and \\ a backslash.
func splitQuery(text string) ([]queryWord, error) {
	var words []queryWord
	var word strings.Builder
	var quoted []bool
	from, inQuotes, inWord := 0, false, false

	add := func(c byte) {
		word.WriteByte(c)
		quoted = append(quoted, inQuotes)
	}
	end := func(at int) {
		if inWord {
			words = append(words, queryWord{source: text[from:at], text: word.String(), quoted: quoted})
		}
		word.Reset()
		quoted, inWord = nil, false
	}

	for i := 0; i < len(text); i++ {
		c := text[i]
		if !inQuotes && isQuerySpace(rune(c)) {
			end(i)
			continue
		}

		if !inWord {
			from, inWord = i, true
		}

		switch {
		case c == '"':
			inQuotes = !inQuotes
		case inQuotes && c == '\\' && i+1 < len(text) && (text[i+1] == '"' || text[i+1] == '\\'):
			i++
			add(text[i])
		default:
			add(c)
		}
	}

	if inQuotes {
		return nil, task.Invalid(task.CodeBadValue, "", "term %s: the quotes are not closed", task.Quote(text[from:]))
	}
	end(len(text))

	return words, nil
}

// isSpecial reports whether the byte at i is one of chars and was not quoted.
func (w queryWord) isSpecial(i int, chars string) bool {
	return strings.IndexByte(chars, w.text[i]) >= 0 && (w.quoted == nil || !w.quoted[i])
}

// indexAny returns the index of the first of chars that was not quoted, or -1.
func (w queryWord) indexAny(chars string) int {
	for i := range len(w.text) {
		if w.isSpecial(i, chars) {
			return i
		}
	}

	return -1
}

// slice returns a part of the word.
func (w queryWord) slice(from, to int) queryWord {
	part := queryWord{source: w.source, text: w.text[from:to]}
	if w.quoted != nil {
		part.quoted = w.quoted[from:to]
	}

	return part
}

// trimPrefix removes a prefix that was not quoted.
func (w queryWord) trimPrefix(prefix string) (queryWord, bool) {
	if !strings.HasPrefix(w.text, prefix) || w.quoted != nil && slices.Contains(w.quoted[:len(prefix)], true) {
		return w, false
	}
	return w.slice(len(prefix), len(w.text)), true
}

// split splits the word at commas that were not quoted.
func (w queryWord) split() []string {
	var parts []string
	for {
		at := w.indexAny(",")
		if at < 0 {
			return append(parts, w.text)
		}

		parts = append(parts, w.text[:at])
		w = w.slice(at+1, len(w.text))
	}
}

// writeQueryValue appends a value, in quotes if it needs them.
func writeQueryValue(b *strings.Builder, v string) {
	if strings.ContainsAny(v, " \t\r\n,\"") {
		v = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v) + `"`
	}
	b.WriteString(v)
}
