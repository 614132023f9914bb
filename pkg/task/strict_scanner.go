package task

import (
	"bytes"
	"reflect"
)

// strictScanner makes the same checks as checker, many times faster, but does not know what is wrong or where. If it
// is not certain that a document is valid, checker examines the document again. It does not check the JSON
// syntax; json.Unmarshal does.
type strictScanner struct {
	rest       []byte // the part of the document that has not been scanned
	nullInMaps bool   // see checker
}

// isStrictJSON reports whether checker would certainly find no error in b. false means that it might.
func isStrictJSON(b []byte, t reflect.Type, nullInMaps bool) bool {
	g := strictScanner{b, nullInMaps}
	return g.scanValue(t, 0, true)
}

// nextToken skips spaces and returns the first byte of the next token, or 0 at the end.
func (g *strictScanner) nextToken() byte {
	for i, c := range g.rest {
		if c > ' ' {
			g.rest = g.rest[i:]
			return c
		}
	}

	g.rest = nil

	return 0
}

// scanValue scans one value.
func (g *strictScanner) scanValue(t reflect.Type, depth int, nullable bool) bool {
	if depth > MaxDepth {
		return false
	}

	t = receivingType(t)

	switch g.nextToken() {
	case '{':
		return g.scanObject(t, depth)
	case '[':
		return g.scanList(t, depth)
	case '"':
		g.scanString()
		return true
	case 0:
		return false
	case 'n':
		g.rest = g.rest[min(len("null"), len(g.rest)):]
		return nullable || t == nil || t.Kind() == reflect.Interface
	}

	return g.scanWord()
}

// scanWord scans a number, true or false.
func (g *strictScanner) scanWord() bool {
	for i, c := range g.rest {
		if c <= ' ' || c == ',' || c == ']' || c == '}' {
			g.rest = g.rest[i:]
			return i > 0
		}
	}

	g.rest = nil

	return true
}

// scanString scans a string. plain is true if the string contains no escape sequences.
func (g *strictScanner) scanString() (s []byte, plain bool) {
	if g.nextToken() != '"' {
		return nil, false
	}

	plain = true
	for i := 1; i < len(g.rest); i++ {
		switch g.rest[i] {
		case '\\':
			plain = false
			i++
		case '"':
			s, g.rest = g.rest[1:i], g.rest[i+1:]
			return s, plain
		}
	}

	g.rest = nil

	return nil, false
}

// scanList scans a list.
func (g *strictScanner) scanList(t reflect.Type, depth int) bool {
	g.rest = g.rest[1:]
	for inner := elemType(t); g.nextToken() != ']'; {
		if !g.scanValue(inner, depth+1, false) {
			return false
		}

		if g.nextToken() == ',' {
			g.rest = g.rest[1:]
		}
	}

	g.rest = g.rest[1:]

	return true
}

// scanObject scans an object.
func (g *strictScanner) scanObject(t reflect.Type, depth int) bool {
	const most = 64 // with more keys, the linear search for duplicates is slower than checker
	var few [16][]byte
	seen := few[:0]
	nullable := t == nil || t.Kind() != reflect.Map || g.nullInMaps

	g.rest = g.rest[1:]
	for g.nextToken() != '}' {
		key, plain := g.scanString()
		if !plain || len(seen) == most {
			return false
		}

		for _, s := range seen {
			if bytes.Equal(s, key) {
				return false
			}
		}

		seen = append(seen, key)
		inner, ok := innerType(t, key)
		if !ok || g.nextToken() != ':' {
			return false
		}

		g.rest = g.rest[1:]
		if !g.scanValue(inner, depth+1, nullable) {
			return false
		}

		if g.nextToken() == ',' {
			g.rest = g.rest[1:]
		}
	}

	g.rest = g.rest[1:]

	return true
}

// innerType is like fieldType, for a key as bytes.
func innerType(t reflect.Type, key []byte) (reflect.Type, bool) {
	if t == nil {
		return nil, true
	}

	switch t.Kind() {
	case reflect.Map:
		return t.Elem(), true
	case reflect.Struct:
		inner, ok := fieldsOf(t).types[string(key)]
		return inner, ok
	}

	return nil, true
}
