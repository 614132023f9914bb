// Package envfile reads files of variables as systemd reads an EnvironmentFile:
// NAME=value in each line, comments that begin with # or ;, values with or without
// quotes. It is stricter in one thing: what systemd passes over with a warning (a
// line without =, a name that is none, a quote without end) is an error here, since
// a program would run without the variable.
//
// Errors name the line and the rule, never what stands there: it may be a secret.
package envfile

import (
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// Error is what is wrong with a file, and in which line, counted from 1.
type Error struct {
	Line int
	What string
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.What) }

// Parse reads the variables of a file. A name that is given twice has the
// value of the later line. The error is an *Error.
func Parse(b []byte) (map[string]string, error) {
	p := parser{rest: string(b), line: 1, values: map[string]string{}}
	for p.rest != "" {
		if err := p.parseEntry(); err != nil {
			return nil, err
		}
	}

	return p.values, nil
}

type parser struct {
	rest   string
	line   int
	values map[string]string
}

const blankChars = " \t\r"

// nextByte takes a byte off; 0 at the end, which no line has.
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

// nextEscaped takes off what is behind a \, the end of a line in one.
func (p *parser) nextEscaped() byte {
	if strings.HasPrefix(p.rest, "\r\n") {
		p.nextByte()
	}
	return p.nextByte()
}

// parseEntry reads a line, or what several lines with a \ at their ends are.
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

	end := strings.IndexAny(p.rest, "=\n")
	if end < 0 || p.rest[end] == '\n' {
		return fault(first, "has no =")
	}

	name := strings.TrimRight(p.rest[:end], blankChars)
	p.rest = p.rest[end+1:]

	if task.CheckVariable("", name) != nil {
		return fault(first, "does not begin with a variable's name: letters, digits and '_', and none of CARILLON_")
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

// skipComment passes over a line, and over the next after a \ at its end.
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

// parseValue reads up to the end of the line: quoted parts as they are, what is not
// quoted without the blanks around it.
func (p *parser) parseValue() (string, error) {
	var b strings.Builder
	solid := 0 // up to here nothing is a blank that may be at the end
	p.rest = strings.TrimLeft(p.rest, blankChars)
	for start := true; p.rest != ""; {
		line := p.line

		switch c := p.nextByte(); {
		case c == '\n':
			return b.String()[:solid], nil
		case start && (c == '\'' || c == '"'):
			if !p.parseQuoted(c, &b) {
				return "", &Error{line, "has a quote without end"}
			}

			p.rest = strings.TrimLeft(p.rest, blankChars)
			solid = b.Len()
			continue // another quoted part may follow
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

// parseQuoted reads up to the closing quote; false if there is none. Between double
// quotes \ takes ", \, ` and $ as they are, and joins lines.
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
