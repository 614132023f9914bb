package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

// readJSON reads a stream of JSON values: one, a list, or one a line.
// line is that of the first byte.
func readJSON(b []byte, line int) ([]*node, *Error) {
	r := &jsonReader{text: b, d: json.NewDecoder(bytes.NewReader(b)), line: line}
	r.d.UseNumber()

	var docs []*node
	for {
		tok, at, err := r.nextToken()
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, r.toError(err)
		}

		n, fault := r.readValue(tok, at, 0)
		if fault != nil {
			return nil, fault
		}

		docs = append(docs, n)
	}
}

// jsonReader walks a decoder's tokens and knows where each begins.
type jsonReader struct {
	text []byte
	d    *json.Decoder

	// How far lines have been counted: offset begins in line, which begins at
	// start. Tokens come in order, so that each byte is looked at once.
	offset, start, line int
}

func (r *jsonReader) nextToken() (json.Token, position, error) {
	from := int(r.d.InputOffset())
	for from < len(r.text) && bytes.IndexByte([]byte(" \t\r\n,:"), r.text[from]) >= 0 {
		from++
	}

	tok, err := r.d.Token()
	return tok, r.positionAt(from), err
}

func (r *jsonReader) positionAt(offset int) position {
	for ; r.offset < min(offset, len(r.text)); r.offset++ {
		if r.text[r.offset] == '\n' {
			r.line++
			r.start = r.offset + 1
		}
	}

	return position{r.line, 1 + utf8.RuneCount(r.text[r.start:max(r.start, min(offset, len(r.text)))])}
}

func (r *jsonReader) toError(err error) *Error {
	offset := int(r.d.InputOffset())
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) && int(syntax.Offset) > offset {
		offset = int(syntax.Offset) - 1
	}

	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return faultAt(r.positionAt(len(r.text)), task.CodeBadJSON, "", "the JSON ends too early")
	}

	return faultAt(r.positionAt(offset), task.CodeBadJSON, "", "%s", err)
}

func (r *jsonReader) readValue(tok json.Token, at position, depth int) (*node, *Error) {
	if depth > maxDepth {
		return nil, faultAt(at, task.CodeBadJSON, "", "nests deeper than %d levels", maxDepth)
	}

	n := &node{at: at}

	switch v := tok.(type) {
	case json.Delim:
		if v == '[' {
			n.kind = kindList
			return n, r.readList(n, depth)
		}

		n.kind = kindObject
		return n, r.readObject(n, depth)
	case string:
		n.kind, n.scalar, n.text = kindString, quoteJSON(v), v
	case json.Number:
		n.kind, n.scalar, n.text = kindNumber, v.String(), v.String()
	case bool:
		n.kind, n.scalar = kindBool, "false"
		if v {
			n.scalar = "true"
		}
		n.text = n.scalar
	default:
		n.kind, n.scalar, n.text = kindNull, "null", "null"
	}

	return n, nil
}

func (r *jsonReader) readList(n *node, depth int) *Error {
	for {
		tok, at, err := r.nextToken()
		if err != nil {
			return r.toError(err)
		}
		if tok == json.Delim(']') {
			return nil
		}

		item, fault := r.readValue(tok, at, depth+1)
		if fault != nil {
			return fault
		}

		n.items = append(n.items, item)
	}
}

func (r *jsonReader) readObject(n *node, depth int) *Error {
	for {
		tok, at, err := r.nextToken()
		if err != nil {
			return r.toError(err)
		}
		if tok == json.Delim('}') {
			return nil
		}

		key := tok.(string) // the decoder lets no other keys pass
		tok, from, err := r.nextToken()
		if err != nil {
			return r.toError(err)
		}

		value, fault := r.readValue(tok, from, depth+1)
		if fault != nil {
			return fault
		}
		if fault := n.addPair(pair{key: key, at: at, value: value}); fault != nil {
			return fault
		}
	}
}
