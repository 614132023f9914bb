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
func (ss *strictScanner) nextToken() byte {
	for i, c := range ss.rest {
		if c > ' ' {
			ss.rest = ss.rest[i:]
			return c
		}
	}

	ss.rest = nil

	return 0
}

// scanValue scans one value.
func (ss *strictScanner) scanValue(t reflect.Type, depth int, nullable bool) bool {
	if depth > MaxDepth {
		return false
	}

	t = receivingType(t)

	switch ss.nextToken() {
	case '{':
		return ss.scanObject(objectType(t), depth)
	case '[':
		return ss.scanList(t, depth)
	case '"':
		ss.scanString()
		return true
	case 0:
		return false
	case 'n':
		ss.rest = ss.rest[min(len("null"), len(ss.rest)):]
		return nullable || t == nil || t.Kind() == reflect.Interface
	}

	return ss.scanWord()
}

// scanWord scans a number, true or false.
func (ss *strictScanner) scanWord() bool {
	for i, c := range ss.rest {
		if c <= ' ' || c == ',' || c == ']' || c == '}' {
			ss.rest = ss.rest[i:]
			return i > 0
		}
	}

	ss.rest = nil

	return true
}

// scanString scans a string. plain is true if the string contains no escape sequences.
func (ss *strictScanner) scanString() (s []byte, plain bool) {
	if ss.nextToken() != '"' {
		return nil, false
	}

	plain = true
	for i := 1; i < len(ss.rest); i++ {
		switch ss.rest[i] {
		case '\\':
			plain = false
			i++
		case '"':
			s, ss.rest = ss.rest[1:i], ss.rest[i+1:]
			return s, plain
		}
	}

	ss.rest = nil

	return nil, false
}

// scanList scans a list.
func (ss *strictScanner) scanList(t reflect.Type, depth int) bool {
	ss.rest = ss.rest[1:]
	for inner := elemType(t); ss.nextToken() != ']'; {
		if !ss.scanValue(inner, depth+1, false) {
			return false
		}

		if ss.nextToken() == ',' {
			ss.rest = ss.rest[1:]
		}
	}

	ss.rest = ss.rest[1:]

	return true
}

// scanObject scans an object.
func (ss *strictScanner) scanObject(t reflect.Type, depth int) bool {
	const most = 64 // with more keys, the linear search for duplicates is slower than checker
	var few [16][]byte
	seen := few[:0]
	nullable := t == nil || t.Kind() != reflect.Map || ss.nullInMaps

	ss.rest = ss.rest[1:]
	for ss.nextToken() != '}' {
		key, plain := ss.scanString()
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
		if !ok || ss.nextToken() != ':' {
			return false
		}

		ss.rest = ss.rest[1:]
		if !ss.scanValue(inner, depth+1, nullable) {
			return false
		}

		if ss.nextToken() == ',' {
			ss.rest = ss.rest[1:]
		}
	}

	ss.rest = ss.rest[1:]

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
