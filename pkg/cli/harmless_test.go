package cli

import (
	"regexp"
	"testing"
	"unicode"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"

	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// hostile are what terminals obey, and what shows a text otherwise than it is.
var hostile = []string{
	"\x1b[2J\x1b[H", "\x1b]0;title\a", "\x1b]52;c;ZXZpbA==\x1b\\", "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", // CSI, OSC: title, clipboard, link
	"\x1bP+q544e\x1b\\", "\x1b_apc\x1b\\", "\x1b^pm\x1b\\", "\x1bXsos\x1b\\", "\x1bc", "\x1b(0", "\x1b#8", // DCS, APC, PM, SOS, reset, charset
	"\u009b31m", "\u009d0;title\u009c", "\u0090q\u009c", "\x9b31m", "\x9d0;t\x9c", "\x85", "\u0085", // C1, in UTF-8 and alone
	"\u202egnp.exe", "\u2066x\u2069", "\u200fx", "\u061cx", "\u200b", "\ufeff", "\u2028", "\u2029", // bidi, invisible, ends of lines
	"\a", "\b\b\b", "\x7f", "\x0e\x0f", "\v", "\f", "\x00", "\x05", "50%\rdone", "\xc3", "\xff\xfe", "\U000e0001",
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

// obeyed is the first of a text that a terminal would obey, but for our own colours.
func obeyed(text string) string {
	text = escapes.ReplaceAllString(text, "")
	for i, r := range text {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return text[max(0, i-10):min(len(text), i+10)]
		}
	}
	return ""
}

// Whatever a task writes, and whatever stands in a record, does nothing to a terminal:
// in logs of any form, in a run, in lists, in reasons.
func TestTerminal_GetsNothingThatItObeys(t *testing.T) {
	for _, evil := range hostile {
		r := task.Run{ID: "i", Namespace: "default", Task: "a", State: task.Failed, Message: "m" + evil, Reason: "r" + evil, Node: "n" + evil,
			Signal: "s" + evil, CancelledBy: "c" + evil, OutputTail: "first\n" + evil + "last", OutputBytes: 100, Attempt: 2,
			Attempts: []task.Attempt{{Attempt: 1, State: task.Failed, Node: evil, Reason: evil}}}
		answer := task.Answer{Sentence: "it said " + evil, Lines: []task.EvidenceLine{{What: "Last output", Says: evil}},
			Stretches: []task.Stretch{{Sentence: evil}}, Also: []task.Answer{{Sentence: evil}}}
		for _, format := range []string{output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML} {
			d := factorytest.New("")
			d.Format, d.Terminal = format, func(any) (int, bool) { return 80, true }
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(output.EmitOne(&d.Factory.Printer, r, r.ID, func(w *output.Details) { describeRun(d.Factory, w, r, "UTC") }))
			must(output.EmitOne(&d.Factory.Printer, answer, "a", func(w *output.Details) { explainWhy(d.Factory, w, answer) }))
			must(output.EmitList(&d.Factory.Printer, []task.Run{r}, selection.RunName, func(bool) *output.Table { return view.RunTable(d.Factory, []task.Run{r}, true, true, view.Zones{}) }))
			if format == output.FormatTable || format == output.FormatJSONL {
				for _, o := range []bool{false, true} {
					m := merge(d.Factory, []selection.Ref{{Namespace: "default", Name: "a"}, {Namespace: "default", Name: "b"}})
					m.timestamps, m.patient = o, true
					l := m.lane(r)
					must(l.add(client.LogPiece{Text: []byte("x" + evil + "y\n"), Stream: task.Stderr, Time: factorytest.At("2026-11-20T22:00:00Z")}))
					l.end()
				}
			}
			d.Report(&client.Error{Status: 404, Code: "c", Message: evil, Hint: evil})
			if what := obeyed(d.Out.String()); what != "" {
				t.Errorf("%q, -o %s: %q is shown", evil, format, what)
			}
			if what := obeyed(d.Errs.String()); what != "" {
				t.Errorf("%q, -o %s: %q is told", evil, format, what)
			}
		}
	}
}
