package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/carillonhq/carillon/pkg/task"
)

// WriteYAML converts JSON to YAML that every parser reads in the same way, in the order of the JSON. It quotes a
// text wherever some version of YAML might interpret it differently. A text with several lines becomes a block.
func WriteYAML(b []byte) ([]byte, error) {
	docs, fault := readJSON(b, 1)
	if fault != nil {
		return nil, fault
	}

	var out bytes.Buffer

	for _, doc := range docs {
		w := yamlWriter{&out}
		w.writeTop(doc)
	}

	return out.Bytes(), nil
}

type yamlWriter struct{ *bytes.Buffer }

func (w yamlWriter) writeTop(n *node) {
	if isInline(n) {
		w.WriteString(w.formatScalar(n, 0) + "\n")
		return
	}
	w.writeBlock(n, 0)
}

// isInline reports whether a value is on the same line as its key.
func isInline(n *node) bool {
	return n.kind < kindList || len(n.items)+len(n.pairs) == 0
}

// writeBlock writes a list or an object. Its lines are indented by two spaces for each level of depth, including
// the first line.
func (w yamlWriter) writeBlock(n *node, depth int) {
	w.writeLines(n, depth, true)
}

// writeLines writes the lines of a list or an object. Without indentFirst, the first line continues the current
// one.
func (w yamlWriter) writeLines(n *node, depth int, indentFirst bool) {
	indent := strings.Repeat("  ", depth)

	for i, p := range n.pairs {
		if i > 0 || indentFirst {
			w.WriteString(indent)
		}
		w.WriteString(w.formatKey(p.key) + ":")
		w.writeAfter(p.value, depth)
	}

	for i, item := range n.items {
		if i > 0 || indentFirst {
			w.WriteString(indent)
		}

		w.WriteString("-")

		if isInline(item) {
			w.writeAfter(item, depth)
			continue
		}

		w.WriteString(" ")
		w.writeLines(item, depth+1, false)
	}
}

// writeAfter writes what follows the colon of a key or the dash of a list.
func (w yamlWriter) writeAfter(n *node, depth int) {
	if isInline(n) {
		w.WriteString(" " + w.formatScalar(n, depth+1) + "\n")
		return
	}

	w.WriteString("\n")
	w.writeBlock(n, depth+1)
}

// formatKey returns a key, quoted if necessary.
func (w yamlWriter) formatKey(s string) string {
	if isPlainSafe(s) {
		return s
	}
	return escapeInvisible(quoteJSON(s))
}

// escapeInvisible returns a quoted text in which characters that are invisible, or that a terminal might interpret,
// are escaped. Its meaning is the same.
func escapeInvisible(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}

	var b strings.Builder

	for _, r := range s {
		switch {
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}

	return b.String()
}

// formatScalar returns a scalar, or an empty list or object. depth is the level of a block's lines.
func (w yamlWriter) formatScalar(n *node, depth int) string {
	switch {
	case n.kind == kindList:
		return "[]"
	case n.kind == kindObject:
		return "{}"
	case n.kind == kindNumber:
		return inDecimal(n.scalar)
	case n.kind != kindString:
		return n.scalar
	case isPlainSafe(n.text):
		return n.text
	// A block: |- if the text does not end with a line end, otherwise |.
	case fitsBlock(n.text):
		indent := strings.Repeat("  ", depth)
		text, last := strings.CutSuffix(n.text, "\n")
		head := "|-"
		if last {
			head = "|"
		}

		body := indent + strings.ReplaceAll(text, "\n", "\n"+indent)

		return head + "\n" + strings.ReplaceAll(body, indent+"\n", "\n")
	}

	// A quoted text in the syntax of JSON, which is valid YAML.
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(n.text) // a string always encodes

	return escapeInvisible(strings.TrimSuffix(b.String(), "\n"))
}

// inDecimal returns a number without an exponent, because YAML parsers interpret 1e-7 differently, and readNumber
// rejects it.
func inDecimal(number string) string {
	if !strings.ContainsAny(number, "eE") {
		return number
	}

	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return number
	}

	return strconv.FormatFloat(v, 'f', -1, 64)
}

// plainText matches texts that need no quotes. They begin with a letter or a slash, so they cannot be numbers,
// dates, aliases or indicators. They contain neither ": " nor " #".
var plainText = regexp.MustCompile(`^[A-Za-z/]([A-Za-z0-9 ._/=+@-]*[A-Za-z0-9._/=+-])?$`)

// reservedWords are words that some version of YAML reads as something other than a text.
var reservedWords = []string{"null", "true", "false", "yes", "no", "on", "off", "y", "n", "inf", "nan"}

// isPlainSafe reports whether a text needs no quotes.
func isPlainSafe(s string) bool {
	return plainText.MatchString(s) && !slices.Contains(reservedWords, strings.ToLower(s))
}

// fitsBlock reports whether a text can be a block: it has several lines, no invisible characters, and no spaces
// that an editor would remove.
func fitsBlock(s string) bool {
	trimmed := strings.TrimSuffix(s, "\n")
	if !strings.Contains(trimmed, "\n") || strings.HasSuffix(trimmed, "\n") || trimmed[0] == ' ' || trimmed[0] == '\n' {
		return false
	}

	for line := range strings.SplitSeq(trimmed, "\n") {
		if strings.TrimRight(line, " \t") != line {
			return false
		}
	}

	return !strings.ContainsFunc(s, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) })
}

// MinimalSpec returns a task as JSON, with only the fields that differ from the default, in the order in which people
// write them. Read yields the same task from it. With bare, the namespace is omitted: the reader provides it.
func MinimalSpec(s task.Spec, bare bool) (json.RawMessage, error) {
	n, err := nodeOf(s)
	if err != nil {
		return nil, err
	}

	usual := task.DefaultsOf(s)
	if len(s.After) > 0 && s.Overlap == task.OverlapQueue {
		usual.Queue.Limit = task.DefaultTriggerQueue
	}

	std, err := nodeOf(usual)
	if err != nil {
		return nil, err
	}

	written := map[string]bool{"name": true, "namespace": true, "schedule": true, "receiver": true} // even if it is the default
	if len(s.After) > 0 && s.Schedule.HasTicks() {
		written["overlap"] = true // required
	}

	least := n.withoutDefaults(std.withoutKeys(written))
	if len(s.After) > 0 && slices.Equal(s.Schedule, usual.Schedule) { // what starts it is in after
		least = least.withoutKeys(map[string]bool{"schedule": true})
	}
	if bare {
		least = least.withoutKeys(map[string]bool{"namespace": true})
	}
	if retry := std.valueOf("retry"); s.Action.Workflow != nil && retry != nil {
		least = least.withLeastRetries([]string{"action", "workflow", "steps"}, retry)
	}

	return least.toJSON(), nil
}

// withLeastRetries returns an object in which the retry policies of steps have only what differs from std, and attempts, because
// an empty policy would look like none. path leads to the steps.
func (n *node) withLeastRetries(path []string, std *node) *node {
	m := *n
	m.pairs = slices.Clone(n.pairs)

	for i, p := range m.pairs {
		switch {
		case len(path) > 0 && p.key == path[0]:
			m.pairs[i].value = p.value.withLeastRetries(path[1:], std)
		case len(path) > 0:
		case p.value.kind == kindObject && p.value.valueOf("retry") != nil: // a step
			step := *p.value
			step.pairs = slices.Clone(step.pairs)
			for j, field := range step.pairs {
				if field.key == "retry" {
					step.pairs[j].value = field.value.withoutDefaults(std.withoutKeys(map[string]bool{"attempts": true}))
				}
			}
			m.pairs[i].value = &step
		}
	}

	return &m
}

// nodeOf returns a spec as a document.
func nodeOf(s task.Spec) (*node, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("write a task as JSON: %w", err)
	}

	docs, fault := readJSON(b, 1)
	if fault != nil {
		return nil, fault
	}

	return docs[0], nil
}

// withoutDefaults returns an object without the fields that are equal in std.
func (n *node) withoutDefaults(std *node) *node {
	m := *n
	m.pairs = nil
	for _, p := range n.pairs {
		other := std.valueOf(p.key)
		switch {
		case other == nil:
		case p.value.kind == kindObject && other.kind == kindObject:
			if p.value = p.value.withoutDefaults(other); len(p.value.pairs) == 0 {
				continue
			}
		case string(p.value.toJSON()) == string(other.toJSON()):
			continue
		}

		m.pairs = append(m.pairs, p)
	}

	return &m
}
