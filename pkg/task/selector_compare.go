package task

import (
	"slices"
	"strconv"
	"strings"
)

func isFact(key string) bool {
	switch key {
	case FactCPUs, FactMemory, FactMemoryFree, FactDisk, FactDiskFree, FactLoad1, FactLoad5, FactLoad15:
		return true
	}
	return false
}

// parseComparison reads a term such as "disk_free > 10Gi".
func parseComparison(key, order, text string) (term, error) {
	v, ok := parseNumber(text)
	if !ok {
		return term{}, Invalid(CodeBadSelector, "", "%s is not a number to compare %s with: write 4, 0.5, 10Gi or 500M%s",
			Quote(text), Quote(key), meantReverse(key, order, text))
	}

	if fact := meantFact(key); fact != "" {
		return term{}, Invalid(CodeBadSelector, "", "%s is not a fact of nodes; did you mean %s?", Quote(key), fact)
	}

	return term{key: key, order: order, number: v}, nil
}

// ComparesInSelector reports whether a selector has comparisons.
func ComparesInSelector(text string) bool { return strings.ContainsAny(text, "<>") }

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

// parseNumber reads a number, 0 or more, or a size. What it costs counts: labels are read
// by it for each run.
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

// meantReverse is the end of a message about "10Gi < disk_free".
func meantReverse(key, order, text string) string {
	if _, ok := parseNumber(key); !ok || !slices.Contains(FactNames(), text) {
		return ""
	}
	turned := map[string]string{">": "<", ">=": "<=", "<": ">", "<=": ">="}[order]
	return "; did you mean " + Quote(text+" "+turned+" "+key) + "?"
}

// meantFact is the fact that was meant by a key that spells it otherwise: free-disk,
// diskFree. Other keys are labels.
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
