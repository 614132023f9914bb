package httpaction

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-faster/jx"

	"github.com/carillonhq/carillon/pkg/task"
)

// pointerTree holds the JSON pointers (RFC 6901) of an action's results. A document is read once for all of them, and
// only the values that they name are kept.
type pointerTree struct {
	names    []string                // the results whose pointer ends here
	children map[string]*pointerTree // by the decoded token
}

// newPointerTree returns the tree of pointers by the names of their results.
func newPointerTree(pointers map[string]string) (*pointerTree, error) {
	root := &pointerTree{}

	for _, name := range slices.Sorted(maps.Keys(pointers)) {
		p := pointers[name]
		if p != "" && p[0] != '/' {
			return nil, fmt.Errorf("%s is not a JSON pointer", task.Quote(p))
		}

		at := root
		for i, token := range strings.Split(p, "/") {
			if i == 0 {
				continue // before the first slash
			}

			token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
			next := at.children[token]
			if next == nil {
				next = &pointerTree{}
				if at.children == nil {
					at.children = map[string]*pointerTree{}
				}
				at.children[token] = next
			}
			at = next
		}
		at.names = append(at.names, name)
	}

	return root, nil
}

// maxValueRead is how much of a document is read for one value: more than any value that fits into MaxResultBytes takes,
// whatever its escapes and spaces are. Without a limit, a value of 16 MiB would take several times its size in memory.
const maxValueRead = 64 << 10

var (
	errNotJSON  = errors.New("the response is not valid JSON") // it is not one JSON value
	errTooLarge = fmt.Errorf("its results are larger than %d bytes", task.MaxResultBytes)
)

// valueReader is the reader of a document that limits how much is read while limited is set.
type valueReader struct {
	io.Reader
	limited  bool
	left     int  // while limited
	exceeded bool // a read was refused
}

func (r *valueReader) Read(b []byte) (int, error) {
	if !r.limited {
		return r.Reader.Read(b)
	}

	if r.left <= 0 {
		r.exceeded = true
		return 0, errTooLarge
	}

	n, err := r.Reader.Read(b[:min(len(b), r.left)])
	r.left -= n

	return n, err
}

// limit begins to limit what is read, for a value, if that has not begun for a value around it.
func (r *valueReader) limit() (end func()) {
	if r == nil || r.limited {
		return func() {}
	}

	r.limited, r.left = true, maxValueRead

	return func() { r.limited = false }
}

// readValues reads a document to its end and returns the values of the pointers by name: texts as they are, all other
// values as JSON. If a field occurs several times, its last value counts.
func (t *pointerTree) readValues(r io.Reader) (map[string]string, error) {
	found := map[string]string{}
	from := &valueReader{Reader: r}
	d := jx.Decode(from, 4<<10)

	if err := t.visit(d, from, found); err != nil {
		if from.exceeded {
			return nil, errTooLarge
		}
		return nil, errNotJSON
	}
	if d.Skip() != io.EOF {
		return nil, errNotJSON // something follows the value
	}

	return found, nil
}

// visit reads the next value of a document, which d reads from a reader; from is nil if the document is in memory.
func (t *pointerTree) visit(d *jx.Decoder, from *valueReader, found map[string]string) error {
	kind := d.Next()

	switch {
	case len(t.names) > 0:
		return t.visitNamed(d, kind, from, found)

	case kind == jx.Object && len(t.children) > 0:
		return d.ObjBytes(func(d *jx.Decoder, key []byte) error {
			if child := t.children[string(key)]; child != nil {
				return child.visit(d, from, found)
			}
			return d.Skip()
		})

	case kind == jx.Array && len(t.children) > 0:
		i := -1
		return d.Arr(func(d *jx.Decoder) error {
			i++
			if child := t.children[strconv.Itoa(i)]; child != nil {
				return child.visit(d, from, found)
			}
			return d.Skip()
		})
	}

	return d.Skip()
}

// visitNamed reads the next value, at which pointers end. Others may continue below it.
func (t *pointerTree) visitNamed(d *jx.Decoder, kind jx.Type, from *valueReader, found map[string]string) error {
	defer from.limit()()

	var text string

	if kind == jx.String {
		s, err := d.Str()
		if err != nil {
			return err
		}
		text = s
	} else {
		raw, err := d.Raw()
		if err != nil {
			return err
		}

		raw = slices.Clone(raw)
		if below := (&pointerTree{children: t.children}); len(t.children) > 0 {
			if err := below.visit(jx.DecodeBytes(raw), nil, found); err != nil {
				return err
			}
		}

		var b bytes.Buffer
		if err := json.Compact(&b, raw); err != nil {
			return err
		}
		text = b.String()
	}

	for _, name := range t.names {
		found[name] = text
	}

	return nil
}
