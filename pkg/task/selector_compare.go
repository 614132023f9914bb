package task

import (
	"slices"
	"strconv"
	"strings"
)

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
