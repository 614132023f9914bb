// Package factorytest creates factories for tests of commands, with a fixed clock, a separate environment, and
// streams that the test can read.
package factorytest

import (
	"bytes"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/task"
)

// TestFactory is a factory with its streams and its environment.
type TestFactory struct {
	*factory.Factory
	Out, Errs bytes.Buffer
	Vars      map[string]string // the environment
}

// New returns a factory with a text as its standard input. The time is 20 November 2026, 22:12 UTC.
func New(in string) *TestFactory {
	d := &TestFactory{Vars: map[string]string{}}
	d.Factory = factory.New(factory.IO{In: strings.NewReader(in), Out: &d.Out, Err: &d.Errs, Env: func(k string) string { return d.Vars[k] }})
	d.Now = func() time.Time { return time.Date(2026, 11, 20, 22, 12, 0, 0, time.UTC) }
	d.Terminal = func(any) (int, bool) { return 0, false }
	d.Format, d.TimeMode, d.Color, d.Timeout = output.FormatTable, output.TimeRelative, "auto", time.Second

	return d
}

// At parses a time in RFC 3339.
func At(s string) task.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return task.At(t)
}

// Hostile contains control sequences that terminals execute, and characters that make a text look different
// from what it is.
var Hostile = []string{
	"\x1b[2J\x1b[H", "\x1b]0;title\a", "\x1b]52;c;ZXZpbA==\x1b\\", "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", // CSI, OSC: title, clipboard, link
	"\x1bP+q544e\x1b\\", "\x1b_apc\x1b\\", "\x1b^pm\x1b\\", "\x1bXsos\x1b\\", "\x1bc", "\x1b(0", "\x1b#8", // DCS, APC, PM, SOS, reset, charset
	"\u009b31m", "\u009d0;title\u009c", "\u0090q\u009c", "\x9b31m", "\x9d0;t\x9c", "\x85", "\u0085", // C1, in UTF-8 and alone
	"\u202egnp.exe", "\u2066x\u2069", "\u200fx", "\u200e\u202a\u202b\u202c\u202d\u2067\u2068", "\u061cx", "\u200b", "\ufeff", "\u2028", "\u2029", // bidi, invisible, ends of lines
	"\a", "\b\b\b", "\x7f", "\x0e\x0f", "\v", "\f", "\x00", "\x05", "50%\rdone", "\xc3", "\xff\xfe", "\U000e0001",
}

// escapePattern matches the color codes that the program itself prints.
var escapePattern = regexp.MustCompile("\x1b\\[[0-9;]*m")

// Obeyed returns the first part of a text that a terminal would execute, apart from the program's own colors,
// or "".
func Obeyed(text string) string {
	text = escapePattern.ReplaceAllString(text, "")
	for i, r := range text {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return text[max(0, i-10):min(len(text), i+10)]
		}
	}

	return ""
}
