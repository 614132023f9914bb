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
	MaxQueryLine   = 2048 // bytes
	MaxQueryTerms  = 32
	MaxQueryValues = 100 // in all terms together
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
	match func(t *queryTerm) matcher
	cost  int  // of matching a row: terms with a lower cost come first
	runs  bool // the term says how runs ended
}

// queryKeys are all keys, in the order of the documentation.
var queryKeys = []queryKey{
	{name: "name", parse: parseNames, match: matchNames, cost: 2},
	{name: "namespace", parse: parseNamespaces, match: matchNamespaces, cost: 2},
	{name: "state", parse: parseStates, match: matchStates},
	{name: "label", parse: parseLabel, match: matchLabel, cost: 1},
	{name: "next", parse: parseTimeOrNone, match: matchNext},
	{name: "tick", parse: parseTicks, match: matchTicks, cost: 3},
	{name: "last", parse: parseTimeOrNone, match: matchLast, runs: true},
	{name: "success", parse: parseTimeOrNone, match: matchSuccess, runs: true},
	{name: "duration", parse: parseMeasure, match: matchDuration, runs: true},
	{name: "lateness", parse: parseMeasure, match: matchLateness, runs: true},
	{name: "failures", parse: parseNumber, match: matchFailures, runs: true},
}

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

	values := 0
	for _, w := range words {
		t, err := parseTerm(w)
		if err != nil {
			return QueryLine{}, termError(w, err)
		}

		values += len(t.values)
		q.terms = append(q.terms, t)
	}

	if values > MaxQueryValues {
		return QueryLine{}, task.Invalid(task.CodeTooMany, "", "%d values; at most %d are allowed", values, MaxQueryValues)
	}

	return q, nil
}

// termError names the term that an error is about.
func termError(w queryWord, err error) error {
	e, ok := err.(*task.Error)
	if !ok {
		return err
	}

	return task.Invalid(e.Code, "", "term %s: %s", task.Quote(w.source), e.Message)
}

// Conditions returns the conditions of the terms, the cheapest ones first.
func (q QueryLine) Conditions() []Condition {
	terms := slices.Clone(q.terms)
	slices.SortStableFunc(terms, func(a, b queryTerm) int { return a.keyOf().cost - b.keyOf().cost })

	list := make([]Condition, len(terms))
	for i := range terms {
		list[i] = terms[i].condition()
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

// Empty reports whether the query line has no terms, so that all tasks match.
func (q QueryLine) Empty() bool { return len(q.terms) == 0 }

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
