package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
)

// keyTables is the page with the tables of keys: the first column contains patterns of keys, the second one their values.
const keyTables = "docs/architecture.md"

// promise is the page with the promise of compatibility, in the section promiseTitle.
const (
	promise      = "docs/internals/record-formats.md"
	promiseTitle = "## What stays compatible\n"
)

// valueTypes are the types of the values of keys, by the pattern of the key. Some keys have no type: their value is a name, or
// only their mod revision matters.
var valueTypes = map[string]string{
	"cluster":                                           "task.Cluster",
	"nodes/<node>":                                      "task.Node",
	"requests/<node>":                                   "store.NodeRequest",
	"leader/<lease>":                                    "",
	"owners/<0042>":                                     "record.Owner",
	"moves/<0042>":                                      "record.Handover",
	"boots/nodes/<node>":                                "record.Boot",
	"boots/tasks/<ns>/<name>":                           "",
	"idempotency/<digest>":                              "record.Idempotency",
	"freezes":                                           "task.Freezes",
	"access/fence":                                      "record.Fence",
	"access/roles/<name>":                               "task.Role",
	"access/bindings/<name>":                            "task.Binding",
	"access/namespaces/<ns>":                            "task.Namespace",
	"access/nodes/<name>":                               "task.NodeLimit",
	"access/disabled/<subject>":                         "record.Timestamp",
	"access/tokens/<id>":                                "record.Token",
	"access/token-changes":                              "",
	"login-key":                                         "record.LoginKey",
	"audit/<time>-<random>":                             "task.AuditRecord",
	"audit-gaps/age":                                    "task.AuditGap",
	"audit-gaps/changes/<subject>":                      "task.AuditGap",
	"audit-gaps/access/<subject>":                       "task.AuditGap",
	"tasks/<ns>/<name>":                                 "task.Task",
	"versions/<ns>/<name>/<generation>":                 "task.Task",
	"deleted/<ns>/<name>":                               "record.Tombstone",
	"secrets/<ns>/<name>":                               "record.Secret",
	"ledger/<0042>/<ns>/<name>/<time>":                  "ledger.Chunk",
	"rundata/<0042>/<ns>/<name>/<run>":                  "task.RunData",
	"shards/<0042>/tasks/<ns>/<name>":                   "task.Entry",
	"shards/<0042>/queue/<ns>/<name>/<run>":             "task.Waiting",
	"shards/<0042>/sent/<ns>/<name>":                    "record.Cursor",
	"shards/<0042>/subscribers/<ns>/<name>/<dependent>": "record.Subscriber",
	"shards/<0042>/triggers/<ns>/<name>/<source>~<run>": "task.Trigger",
	"graph/<ns>":                                        "",
	"shards/<0042>/history/<ns>/<name>/<run>":           "task.Run",
	"shards/<0042>/history/…/<run>~late~<token>":        "task.Run",
	"shards/<0042>/parts/<ns>/<name>/<run>":             "task.Run",
	"shards/<0042>/dead/<ns>/<name>/<run>":              "task.Waiting",
	"shards/<0042>/watermark":                           "record.Watermark",
	"shards/<0042>/revised":                             "",
	"runs/<node>/<0042>/<ns>/<name>/<run>":              "task.Assigned",
	"cleared/<instance>":                                "record.Timestamp",
	"alerts/<0042>/<ns>/<name>/<kind>":                  "task.Alert",
	"alerts/<0042>/<ns>/~more/<receiver>":               "task.Alert",
	"alerts/cluster/<code>":                             "task.Alert",
	"alerts/heartbeat":                                  "record.Timestamp",
	"alerts/sent/<ns>/<receiver>":                       "task.AlertsSent",
	"alerts/rules/<ns>/<name>":                          "task.AlertRule",
	"alerts/silences/<ns>/<id>":                         "task.AlertSilence",
}

// keyRow is a row of a table of keys.
type keyRow struct {
	patterns []string
	value    string
}

var (
	codeText = regexp.MustCompile("`([^`]+)`")
	link     = regexp.MustCompile(`\[([^]]+)\]\([^)]+\)`)
)

// parseKeys returns the rows of all tables of keys. Their patterns are those of valueTypes.
func parseKeys(tables string) ([]keyRow, error) {
	var rows []keyRow
	missing := map[string]bool{}
	for pattern := range valueTypes {
		missing[pattern] = true
	}

	_, keys, _ := strings.Cut(tables, "\n## Keys\n")
	keys, _, _ = strings.Cut(keys, "\n## ")

	for line := range strings.Lines(keys) {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| `") || len(cells) < 4 {
			continue
		}

		row := keyRow{value: link.ReplaceAllString(cells[1], "$1")}
		for _, code := range codeText.FindAllStringSubmatch(cells[0], -1) {
			if _, ok := valueTypes[code[1]]; !ok {
				return nil, fmt.Errorf("%s: add the type of the value of %s to valueTypes", keyTables, code[1])
			}

			row.patterns = append(row.patterns, code[1])
			delete(missing, code[1])
		}

		rows = append(rows, row)
	}

	for pattern := range missing {
		return nil, fmt.Errorf("%s: no table contains the key %s", keyTables, pattern)
	}

	return rows, nil
}

// generatePage returns the page of all keys, and of the types of their values with all fields.
func (t types) generatePage(tables, promise string) ([]byte, error) {
	rows, err := parseKeys(tables)
	if err != nil {
		return nil, err
	}

	_, rules, found := strings.Cut(promise, promiseTitle)
	rules, _, end := strings.Cut(rules, "\n`make docs`")
	if !found || !end {
		return nil, fmt.Errorf("the section %q is not as expected", promiseTitle)
	}

	var b bytes.Buffer
	b.WriteString("# Records\n\nThis page lists all keys of Carillon in etcd, and the fields of their values. It is generated from the source.\n\n" +
		promiseTitle + rules + "\n## Keys\n\nKeys follow the prefix of the cluster, `/carillon` by default.\n\n| key | content | value |\n|---|---|---|\n")

	var queue []string
	for _, row := range rows {
		for _, pattern := range row.patterns {
			value := "–"
			if typ := valueTypes[pattern]; typ != "" {
				value = t.typeText(typ, &queue)
			}

			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", pattern, row.value, value)
		}
	}

	b.WriteString("\n## Values\n\nValues are JSON objects. Times are RFC 3339 in UTC with milliseconds, durations have units: `1m30s`.\n")

	for i := 0; i < len(queue); i++ { // the queue grows
		if err := t.writeType(&b, queue[i], &queue); err != nil {
			return nil, err
		}
	}

	return b.Bytes(), nil
}

// writeType writes the section of a type, with a table of its fields if it is an object.
func (t types) writeType(b *bytes.Buffer, name string, queue *[]string) error {
	decl := t[name]
	if decl == nil || decl.doc == "" {
		return fmt.Errorf("%s has no description", name)
	}

	fmt.Fprintf(b, "\n### %s\n\n%s\n", name, decl.doc)

	if !t.isStruct(name) || t.hasMethod(name, "UnmarshalJSON") {
		return nil
	}

	fields, err := t.fieldsOf(name, func(string) bool { return false })
	if err != nil {
		return err
	}

	fields = slices.DeleteFunc(fields, func(f field) bool { return f.codec == "-" })
	if len(fields) == 0 {
		return nil
	}

	b.WriteString("\n| field | type | present | description |\n|---|---|---|---|\n")
	for _, f := range fields {
		present := "if set"
		if f.omit == "" {
			present = "always"
		}

		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", f.key, t.typeText(f.typ, queue), present, strings.ReplaceAll(f.doc, "|", `\|`))
	}

	return nil
}

// typeText describes a type in words. Types with a section of their own are added to the queue.
func (t types) typeText(typ string, queue *[]string) string {
	if elem, ok := strings.CutPrefix(typ, "*"); ok {
		return t.typeText(elem, queue)
	}
	if elem, ok := strings.CutPrefix(typ, "[]"); ok && elem != "byte" {
		return "list of " + t.typeText(elem, queue)
	}
	if _, elem, ok := strings.Cut(typ, "]"); ok && strings.HasPrefix(typ, "map[") {
		return "map of " + t.typeText(elem, queue)
	}

	switch typ {
	case "string":
		return "text"
	case "bool":
		return "true or false"
	case "[]byte":
		return "base64"
	case "int", "int64", "uint64", "float64":
		return "number"
	case "task.Time", "task.Duration":
		return strings.ToLower(strings.TrimPrefix(typ, "task."))
	case "any", "json.RawMessage":
		return "any"
	}

	// A name for a simple type needs no section.
	if decl := t[typ]; decl != nil && !t.hasMethod(typ, "UnmarshalJSON") && !t.hasMethod(typ, "UnmarshalText") {
		if base, ok := decl.expr.(*ast.Ident); ok {
			return t.typeText(base.Name, queue)
		}
	}

	if !slices.Contains(*queue, typ) {
		*queue = append(*queue, typ)
	}

	return fmt.Sprintf("[%s](#%s)", typ, strings.ToLower(strings.ReplaceAll(typ, ".", "")))
}
