package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

// readJSON reads a stream of JSON values: one value, a list, or one in each line. line is the number of the first
// line.
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

// jsonReader walks the tokens of a decoder and keeps the position of each.
type jsonReader struct {
	text []byte
	d    *json.Decoder

	// Lines are counted up to offset, which is in line. That line begins at offset start. Tokens come in order, so
	// that each byte is visited only once.
	offset, start, line int
}

// nextToken returns the next token and where it begins.
func (r *jsonReader) nextToken() (json.Token, position, error) {
	from := int(r.d.InputOffset())
	for from < len(r.text) && bytes.IndexByte([]byte(" \t\r\n,:"), r.text[from]) >= 0 {
		from++
	}

	tok, err := r.d.Token()
	return tok, r.positionAt(from), err
}

// positionAt returns the position of an offset, which must not be before the previous one.
func (r *jsonReader) positionAt(offset int) position {
	for ; r.offset < min(offset, len(r.text)); r.offset++ {
		if r.text[r.offset] == '\n' {
			r.line++
			r.start = r.offset + 1
		}
	}

	return position{r.line, 1 + utf8.RuneCount(r.text[r.start:max(r.start, min(offset, len(r.text)))])}
}

// toError adds the position to an error of the decoder.
func (r *jsonReader) toError(err error) *Error {
	// A syntax error has a more exact offset than the decoder.
	offset := int(r.d.InputOffset())
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) && int(syntax.Offset) > offset {
		offset = int(syntax.Offset) - 1
	}

	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return faultAt(r.positionAt(len(r.text)), task.CodeBadJSON, "", "unexpected end of JSON")
	}

	return faultAt(r.positionAt(offset), task.CodeBadJSON, "", "%s", err)
}

// readValue reads the value that begins with tok.
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

// readList reads the rest of a list.
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

// readObject reads the rest of an object.
func (r *jsonReader) readObject(n *node, depth int) *Error {
	for {
		tok, at, err := r.nextToken()
		if err != nil {
			return r.toError(err)
		}
		if tok == json.Delim('}') {
			return nil
		}

		key := tok.(string) // the decoder accepts no other keys
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
