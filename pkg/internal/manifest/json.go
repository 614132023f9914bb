package manifest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
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

	// Lines and characters are counted up to offset, which is in line, after column characters. Tokens come in order, so that
	// each byte is visited only once.
	offset, line, column int
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

// positionAt returns the position of an offset. For an offset before the last one, it returns that of the last one.
func (r *jsonReader) positionAt(offset int) position {
	for ; r.offset < min(offset, len(r.text)); r.offset++ {
		switch c := r.text[r.offset]; {
		case c == '\n':
			r.line++
			r.column = 0
		case utf8.RuneStart(c):
			r.column++
		}
	}

	return position{r.line, r.column + 1}
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

// MaxLine is how many bytes a line may have.
const MaxLine = 1 << 20

// IsJSONLines reports whether a file's name means that each of its lines is a task.
func IsJSONLines(file string) bool {
	return strings.HasSuffix(file, ".ndjson") || strings.HasSuffix(file, ".jsonl")
}

// CountLines counts the lines of a regular file. It rejects other files, which cannot be read twice.
func CountLines(path string) (int, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, withoutSyscall(path, err)
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s: is not a regular file", path)
	}

	f, err := os.Open(path)
	if err != nil {
		return 0, withoutSyscall(path, err)
	}

	defer f.Close()

	last := byte('\n')
	b := make([]byte, 64<<10)

	for n := 0; ; {
		got, err := f.Read(b)
		if n += bytes.Count(b[:got], []byte("\n")); got > 0 {
			last = b[got-1]
		}

		switch {
		case errors.Is(err, io.EOF) && last != '\n':
			return n + 1, nil
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, withoutSyscall(path, err)
		}
	}
}

// BeginsWithLine reports whether r begins with a JSON object in one line that is not the last. The buffer of r must
// be longer than that line. BeginsWithLine waits for the line, and consumes nothing.
func BeginsWithLine(r *bufio.Reader) bool {
	for {
		n := r.Buffered()
		b, _ := r.Peek(n)
		if b = bytes.TrimLeft(b, " \t\r\n"); len(b) > 0 && b[0] != '{' {
			return false
		}
		if line, _, whole := bytes.Cut(b, []byte("\n")); whole {
			return json.Valid(line)
		}
		if _, err := r.Peek(n + 1); err != nil {
			return false
		}
	}
}

// ReadJSONLines reads tasks from a stream as they arrive, one in each line. It skips empty lines. Otherwise it behaves like
// Read: errors in a task's values are in its Err. An *Error concerns one line that is not a task, and further lines
// follow. Any other error ends the sequence.
func ReadJSONLines(file string, r io.Reader, namespace string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		in := bufio.NewReaderSize(r, 64<<10)

		for number := 1; ; number++ {
			line, err := readLine(in)
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, errLongLine) {
				yield(Object{}, withoutSyscall(file, err))
				return
			}

			if errors.Is(err, errLongLine) {
				fault := faultAt(position{number, 1}, task.CodeTooLong, "", "the line is longer than %d bytes", MaxLine)
				fault.File = file
				if !yield(Object{}, fault) {
					return
				}

				continue
			}

			// A byte order mark may precede the first line.
			if number == 1 {
				line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
			}

			if len(bytes.TrimSpace(line)) > 0 {
				if !yield(oneLine(file, line, number, namespace)) {
					return
				}
			}

			if err != nil {
				return
			}
		}
	}
}

// errLongLine means that a line is longer than MaxLine. The reader is at the beginning of the next line.
var errLongLine = errors.New("line too long")

// readLine returns a line, which is valid until the next call. It returns io.EOF together with the last line.
func readLine(in *bufio.Reader) ([]byte, error) {
	var long []byte
	for size := 0; ; {
		part, err := in.ReadSlice('\n')
		if size += len(part); size <= MaxLine+1 && (len(long) > 0 || errors.Is(err, bufio.ErrBufferFull)) {
			long = append(long, part...)
			part = long
		}

		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		case size > MaxLine+1:
			return nil, errLongLine // at the end of the file, the next call returns io.EOF again
		default:
			return part, err
		}
	}
}

// oneLine reads one line as a task. number is the number of the line.
func oneLine(file string, line []byte, number int, namespace string) (Object, error) {
	fault := checkText(line)
	var docs []*node

	if fault != nil {
		fault.Line += number - 1
	} else if docs, fault = readJSON(bytes.TrimRight(line, "\r\n"), number); fault == nil && len(docs) != 1 {
		fault = faultAt(docs[1].at, task.CodeBadJSON, "", "a line must contain exactly one task")
	}

	if fault != nil {
		fault.File = file
		return Object{}, fault
	}

	o := Object{file: file, node: docs[0]}
	if err := o.decodeSpec(namespace); err != nil {
		return Object{}, o.Locate(err)
	}

	o.Err = o.Locate(checkForReader(&o.Spec))

	return o, nil
}
