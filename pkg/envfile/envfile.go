// Package envfile parses files of variables as systemd parses an EnvironmentFile:
// NAME=value in each line, comments that begin with # or ;, values with or without
// quotes. It is stricter in one respect: what systemd skips with a warning (a
// line without =, an invalid name, an unterminated quote) is an error here, because
// the program would run without the variable.
//
// Errors name the line and the rule, but never quote the line, because it may contain a secret.
package envfile

import (
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// Error describes a fault of a file.
type Error struct {
	Line int    // counted from 1
	What string // continues a sentence that begins with the line
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.What) }

// Parse returns the variables in a file. If a name occurs twice, the
// later value counts. The error is an *Error.
func Parse(b []byte) (map[string]string, error) {
	p := parser{rest: string(b), line: 1, values: map[string]string{}}
	for p.rest != "" {
		if err := p.parseEntry(); err != nil {
			return nil, err
		}
	}

	return p.values, nil
}

// parser holds the position in a file and the variables before it.
type parser struct {
	rest   string // the part that is not parsed yet
	line   int    // the line in which rest begins, counted from 1
	values map[string]string
}

// blankChars are the characters that count as blanks. \r is one of them, so lines may end in \r\n.
const blankChars = " \t\r"

// nextByte consumes and returns a byte. It returns 0 at the end; Parse rejects values that contain 0.
func (p *parser) nextByte() byte {
	if p.rest == "" {
		return 0
	}

	c := p.rest[0]
	p.rest = p.rest[1:]
	if c == '\n' {
		p.line++
	}

	return c
}

// nextEscaped consumes and returns the byte after a backslash. It returns \r\n as one line break.
func (p *parser) nextEscaped() byte {
	if strings.HasPrefix(p.rest, "\r\n") {
		p.nextByte()
	}
	return p.nextByte()
}

// parseEntry parses one entry: a line, or several lines that are joined by backslashes at their ends.
func (p *parser) parseEntry() error {
	p.rest = strings.TrimLeft(p.rest, blankChars)
	first, fault := p.line, func(line int, what string) error { return &Error{line, what} }

	switch {
	case p.rest == "":
		return nil
	case p.rest[0] == '\n':
		p.nextByte()
		return nil
	case p.rest[0] == '#' || p.rest[0] == ';':
		p.skipComment()
		return nil
	}

	// The name ends at the first =. A line break before that means that there is none.
	end := strings.IndexAny(p.rest, "=\n")
	if end < 0 || p.rest[end] == '\n' {
		return fault(first, "contains no =")
	}

	name := strings.TrimRight(p.rest[:end], blankChars)
	p.rest = p.rest[end+1:]

	if task.CheckVariable("", name) != nil {
		return fault(first, "does not begin with a variable name: letters, digits and '_', but not CARILLON_")
	}

	value, err := p.parseValue()
	if err != nil {
		return err
	}
	if strings.ContainsRune(value, 0) {
		return fault(first, "contains a NUL byte")
	}

	p.values[name] = value

	return nil
}

// skipComment skips a comment, which a backslash at the end of a line continues.
func (p *parser) skipComment() {
	for p.rest != "" {
		switch p.nextByte() {
		case '\\':
			p.nextEscaped()
		case '\n':
			return
		}
	}
}

// parseValue parses a value up to the end of the line. It keeps quoted parts unchanged, and removes blanks around
// unquoted parts.
func (p *parser) parseValue() (string, error) {
	var b strings.Builder
	solid := 0 // length of the value without unquoted blanks at its end
	p.rest = strings.TrimLeft(p.rest, blankChars)
	for start := true; p.rest != ""; {
		line := p.line

		switch c := p.nextByte(); {
		case c == '\n':
			return b.String()[:solid], nil
		case start && (c == '\'' || c == '"'):
			if !p.parseQuoted(c, &b) {
				return "", &Error{line, "contains an unterminated quote"}
			}

			p.rest = strings.TrimLeft(p.rest, blankChars)
			solid = b.Len()
			continue // start remains true, because another quoted part may follow
		case c == '\\':
			if p.rest != "" {
				if e := p.nextEscaped(); e != '\n' {
					b.WriteByte(e)
				}
			}

			solid = b.Len()
		default:
			b.WriteByte(c)
			if !strings.ContainsRune(blankChars, rune(c)) {
				solid = b.Len()
			}
		}

		start = false
	}

	return b.String()[:solid], nil
}

// parseQuoted parses up to the closing quote and reports whether there is one. In double
// quotes, a backslash escapes ", \, ` and $, and joins lines.
func (p *parser) parseQuoted(quote byte, b *strings.Builder) bool {
	for p.rest != "" {
		c := p.nextByte()
		switch {
		case c == quote:
			return true
		case c == '\\' && quote == '"' && p.rest != "":
			switch e := p.nextEscaped(); e {
			case '"', '\\', '`', '$':
				b.WriteByte(e)
			case '\n':
			default:
				b.WriteByte('\\')
				b.WriteByte(e)
			}
		default:
			b.WriteByte(c)
		}
	}

	return false
}
