package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/carillonhq/carillon/pkg/task"
)

// Limits of one YAML document. The parser's time grows with the square of the number of keys of a mapping, and of
// the depth. With these limits, the worst document takes less than a second.
const (
	maxTokens = 20_000
	maxFlow   = maxDepth // nested [ and {
)

// section is the text of a YAML document, and the number of lines before it.
type section struct {
	text   []byte
	before int
}

// splitSections splits a stream at its document markers. The parser can do this, too, but loses what follows an
// empty document.
func splitSections(b []byte) []section {
	var all []section
	current := section{}
	line := 0
	for raw := range bytes.Lines(b) {
		trimmed := bytes.TrimRight(raw, " \t\r\n")
		begins := bytes.Equal(trimmed, []byte("---")) || bytes.HasPrefix(raw, []byte("--- ")) || bytes.HasPrefix(raw, []byte("---\t"))
		if begins || bytes.Equal(trimmed, []byte("...")) {
			all = append(all, current)
			current = section{before: line}
			raw = append([]byte("   "), raw[3:]...) // keep the columns of the rest
		}

		if len(bytes.TrimSpace(current.text)) == 0 { // each document may begin with a byte order mark, as in files that were concatenated
			raw = bytes.TrimPrefix(raw, []byte("\xef\xbb\xbf"))
		}

		current.text = append(current.text, raw...)
		line++
	}

	return append(all, current)
}

// readYAML reads every document of a stream. It skips empty ones.
func readYAML(b []byte) ([]*node, *Error) {
	var docs []*node
	for _, s := range splitSections(b) {
		if len(bytes.TrimSpace(s.text)) == 0 {
			continue
		}

		n, err := s.readNode()
		if err != nil {
			err.Line += s.before
			return nil, err
		}

		if n != nil {
			docs = append(docs, n)
		}
	}

	return docs, nil
}

// readNode parses a section; nil if it is empty. Lines of errors count from the beginning of the section.
func (s section) readNode() (n *node, fault *Error) {
	tokens := lexer.Tokenize(string(s.text))
	if err := checkDepth(tokens); err != nil {
		return nil, err
	}

	file, err := parseTokens(tokens)
	if err != nil {
		return nil, s.syntaxError(err)
	}

	y := yamlReader{before: s.before}

	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType && len(bytes.TrimSpace(s.text)) == 0 {
			continue
		}
		if n != nil {
			return nil, faultAt(y.startOf(doc.Body), task.CodeBadValue, "", "begins a document without a --- line")
		}
		if n, fault = y.readValue(doc.Body, 0); fault != nil {
			return nil, fault
		}
	}

	return n, nil
}

// parseTokens converts a panic of the parser to an error.
func parseTokens(tokens token.Tokens) (file *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("cannot parse the YAML: %v", r)
		}
	}()

	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// checkDepth enforces the limits before the parser runs.
func checkDepth(tokens token.Tokens) *Error {
	depth := 0
	for i, t := range tokens {
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		}

		if depth > maxFlow {
			return faultAt(positionOf(t), task.CodeBadValue, "", "nests deeper than %d levels", maxFlow)
		}
		if i >= maxTokens {
			return faultAt(positionOf(t), task.CodeTooLong, "", "the document is too large; split it with --- lines")
		}
	}

	return nil
}

// syntaxError returns the parser's error, with a hint for two common mistakes: a schedule without quotes, and a tab
// in the indentation.
func (s section) syntaxError(err error) *Error {
	var syntax yaml.Error
	if !errors.As(err, &syntax) || syntax.GetToken() == nil {
		return faultAt(position{1, 1}, task.CodeBadValue, "", "%s", err)
	}

	at := positionOf(syntax.GetToken())
	lines := strings.Split(string(s.text), "\n")
	line := ""
	if at.line >= 1 && at.line <= len(lines) {
		line = lines[at.line-1]
	}

	if tab := strings.IndexByte(line, '\t'); tab >= 0 && strings.TrimSpace(line[:tab]) == "" {
		return faultAt(position{at.line, tab + 1}, task.CodeBadValue, "", "YAML does not allow tabs in the indentation; use spaces")
	}
	if bareSchedule.MatchString(line) {
		return faultAt(at, task.CodeBadSchedule, "", "a value that begins with * or @ needs quotes, as in schedule: \"*/5 * * * *\"")
	}

	return faultAt(at, task.CodeBadValue, "", "%s", syntax.GetMessage())
}

// bareSchedule matches a line with a value that begins with * or @ and has no quotes.
var bareSchedule = regexp.MustCompile(`^\s*(-|- )?\s*([A-Za-z_]+:|-)\s+[*@]|[\[,]\s*[*@]`)

// yamlReader converts the parser's tree to nodes. before is the number of lines before the section.
type yamlReader struct{ before int }

// positionOf returns the position of a token within the section.
func positionOf(t *token.Token) position {
	if t == nil || t.Position == nil {
		return position{1, 1}
	}
	return position{t.Position.Line, t.Position.Column}
}

// startOf returns where a value begins, within the section. The token of a mapping itself is its first colon.
func (y yamlReader) startOf(n ast.Node) position {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return positionOf(n.Values[0].Key.GetToken())
		}
	case *ast.MappingValueNode:
		return positionOf(n.Key.GetToken())
	}

	return positionOf(n.GetToken())
}

// positionOf returns the position of a value within the file.
func (y yamlReader) positionOf(n ast.Node) position {
	p := y.startOf(n)
	p.line += y.before
	return p
}

// readValue converts one of the parser's nodes. Errors have the lines of the section, nodes those of the file.
func (y yamlReader) readValue(n ast.Node, depth int) (*node, *Error) {
	if depth > maxDepth {
		return nil, faultAt(y.startOf(n), task.CodeBadValue, "", "nests deeper than %d levels", maxDepth)
	}

	out := &node{at: y.positionOf(n), text: n.GetToken().Value}

	switch n := n.(type) {
	case *ast.MappingNode:
		return out, y.readObject(out, n.Values, depth)
	case *ast.MappingValueNode:
		return out, y.readObject(out, []*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		out.kind = kindList
		for _, v := range n.Values {
			item, err := y.readValue(v, depth+1)
			if err != nil {
				return nil, err
			}
			out.items = append(out.items, item)
		}

		return out, nil
	case *ast.StringNode:
		out.kind, out.scalar = kindString, quoteJSON(n.Value)
	case *ast.LiteralNode:
		out.kind, out.scalar = kindString, quoteJSON(n.Value.Value)
	case *ast.NullNode:
		out.kind, out.scalar = kindNull, "null"
	case *ast.BoolNode:
		out.kind, out.scalar = kindBool, strconv.FormatBool(n.Value)
	case *ast.IntegerNode, *ast.FloatNode:
		return out, y.readNumber(out, n)
	default:
		return nil, y.refuseNode(n)
	}

	return out, nil
}

// readObject converts the pairs of a mapping.
func (y yamlReader) readObject(out *node, values []*ast.MappingValueNode, depth int) *Error {
	out.kind = kindObject

	for _, v := range values {
		key, ok := v.Key.(*ast.StringNode)
		if !ok {
			return y.refuseKey(v.Key)
		}

		value, err := y.readValue(v.Value, depth+1)
		if err != nil {
			return err
		}

		if err := out.addPair(pair{key: key.Value, at: y.positionOf(key), value: value}); err != nil {
			err.Line -= y.before
			return err
		}
	}

	return nil
}

// decimalPattern matches numbers that all versions of YAML read in the same way.
var decimalPattern = regexp.MustCompile(`^[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?$`)

// readNumber accepts only decimal numbers, because versions of YAML interpret 010, 1_000 and 0x1F differently.
func (y yamlReader) readNumber(out *node, n ast.Node) *Error {
	if !decimalPattern.MatchString(out.text) {
		return faultAt(y.startOf(n), task.CodeBadValue, "", "%s: use a decimal number, or put it in quotes to make it a string", task.Quote(out.text))
	}
	out.kind, out.scalar = kindNumber, strings.TrimPrefix(out.text, "+")
	return nil
}

// refuseKey returns the error for a key that is not a text.
func (y yamlReader) refuseKey(key ast.MapKeyNode) *Error {
	if _, ok := key.(*ast.MergeKeyNode); ok || key.IsMergeKey() {
		return faultAt(y.startOf(key), task.CodeBadValue, "", "merge keys (<<) are not supported; write the fields out")
	}
	return faultAt(y.startOf(key), task.CodeBadValue, "", "%s: a key must be a string; put it in quotes", task.Quote(key.GetToken().Value))
}

// refuseNode returns the error for a value that is not supported.
func (y yamlReader) refuseNode(n ast.Node) *Error {
	at := y.startOf(n)

	switch n.(type) {
	case *ast.AnchorNode:
		return faultAt(at, task.CodeBadValue, "", "anchors (&) are not supported; write the value out, or put it in quotes")
	case *ast.AliasNode:
		return faultAt(at, task.CodeBadValue, "", "aliases (*) are not supported; a string that begins with * needs quotes")
	case *ast.TagNode:
		return faultAt(at, task.CodeBadValue, "", "tags (!) are not supported; a string that begins with ! needs quotes")
	case *ast.DirectiveNode:
		return faultAt(at, task.CodeBadValue, "", "directives (%%) are not supported")
	case *ast.InfinityNode, *ast.NanNode:
		return faultAt(at, task.CodeBadValue, "", "%s is not a supported number", task.Quote(n.GetToken().Value))
	}

	return faultAt(at, task.CodeBadValue, "", "%s is not allowed here", task.Quote(n.GetToken().Value))
}
