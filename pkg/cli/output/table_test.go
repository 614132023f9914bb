package output

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

func TestTable_IsCutForTerminalsOnly(t *testing.T) {
	for _, width := range []int{0, 40} {
		d := newTestPrinter()
		d.Terminal = func(any) (int, bool) { return width, width > 0 }
		g := &Table{Headers: []string{"NAME", "RESULT"}}
		g.AddRow("a", d.StateText(task.Succeeded, strings.Repeat("long ", 20)))
		g.AddRow("nightly", d.StateText(task.Failed, "exit 1"))

		text := g.Render(d.Printer)
		for line := range strings.Lines(text) {
			visible := utf8.RuneCountInString(strings.TrimRight(escapes.ReplaceAllString(line, ""), "\n"))
			if width > 0 && visible > width {
				t.Errorf("%d columns in a terminal of %d: %q", visible, width, line)
			}

			if strings.HasSuffix(line, " \n") {
				t.Errorf("blanks at the end of %q", line)
			}
		}

		if whole := strings.Contains(text, strings.TrimSpace(strings.Repeat("long ", 20))); whole != (width == 0) {
			t.Errorf("width %d:\n%s", width, text)
		}

		if colours := strings.Contains(text, "\x1b["); colours != (width > 0) {
			t.Errorf("width %d:\n%q", width, text)
		}
	}
}

func TestTable_KeepsTheResultOnANarrowTerminal(t *testing.T) {
	d := newTestPrinter()
	d.ASCII, d.Color = true, "never"
	d.Terminal = func(any) (int, bool) { return 80, true }
	g := &Table{Headers: []string{"NAME", "SCHEDULE", "NEXT", "LEFT", "LAST", "RESULT", "LAST 10"}}
	g.AddRow("after-the-holidays", "30 3 * * *, */2 * * * * Berlin", "paused until Wed 6 Jan 2027 00:00 CET", "3h 18m", "1m 58s ago, 225ms", "x exit 69", "++++++x+++")
	text := g.Render(d.Printer)

	for _, part := range []string{"after-the-holidays ", "  paused until 6 Jan 2027 ", "1m ago", "x exit 69", "RESULT", "+x+++\n", "LAST 5"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing:\n%s", part, text)
		}
	}

	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
			t.Errorf("%d columns: %q", n, line)
		}
	}

	g = &Table{Headers: []string{"TASK", "RUN", "TICK", "RESULT", "NODE", "LATE", "TOOK"}}
	g.AddRow("every-order", "20261121T135616.218Z-3fxm-wt5c", "Sat 13:56:16 UTC (manual)", "x exit 3", "dev", "15ms", "1m 2s")

	if text := g.Render(d.Printer); !strings.Contains(text, "20261121T135616.218Z-3fxm-wt5c ") || !strings.Contains(text, "x exit 3") || !strings.Contains(text, "Sat 13:56:16 UTC") || !strings.Contains(text, " ~\n") {
		t.Error(text)
	}
}

// With --ascii, no symbol of a text of this program remains.
func TestPrinter_PlainHasOnlyASCII(t *testing.T) {
	d := newTestPrinter()
	d.ASCII = true
	if got, want := d.Plain("· – … → × ± └"), "- - ... -> x +/- +"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
