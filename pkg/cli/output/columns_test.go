package output

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

// The clock of the test printer is 22:12 UTC on Friday, 20 November 2026.
func TestForms_ShortenCells(t *testing.T) {
	for _, c := range []struct {
		head string
		want []string // the cell, and then what each form of the column makes of it
	}{
		{"NEXT", []string{"Fri 23:30 UTC", "23:30 UTC", "23:30 UTC", "23:30 UTC", "23:30 UTC"}},
		{"NEXT", []string{"Sat 02:30 UTC", "Sat 02:30 UTC", "Sat 02:30 UTC", "Sat 02:30 UTC", "Sat 02:30 UTC"}},
		{"NEXT", []string{"Thu 1 Jul 2027 03:30 UTC", "1 Jul 2027 03:30 UTC", "1 Jul 2027 03:30 UTC", "1 Jul 2027", "1 Jul 2027"}},
		{"NEXT", []string{"paused until Wed 6 Jan 2027 00:00 UTC (ann)", "paused until 6 Jan 2027 00:00 UTC (ann)", "paused until 6 Jan 2027 00:00 UTC", "paused until 6 Jan 2027", "paused until …"}},
		{"NEXT", []string{"\x1b[33mpaused (ann)\x1b[0m", "\x1b[33mpaused (ann)\x1b[0m", "\x1b[33mpaused\x1b[0m", "\x1b[33mpaused\x1b[0m", "\x1b[33mpaused\x1b[0m"}},
		{"NEXT", []string{"2026-12-24 18:00:00 UTC", "2026-12-24 18:00:00 UTC", "2026-12-24 18:00:00 UTC", "2026-12-24", "2026-12-24"}},
		{"LAST", []string{"21h 11m ago, 1m 3s", "21h 11m ago", "21h ago"}},
		{"LEFT", []string{"2d 9h", "2d"}},
		{"LAST 10", []string{"✓✓✓✓✓✓✗○↷✓", "✓✗○↷✓"}},
		{"LAST 10", []string{"✓✗", "✓✗"}},
		{"LAST 10", []string{strings.Repeat("\x1b[32m✓\x1b[0m", 10), strings.Repeat("\x1b[32m✓\x1b[0m", 5)}},
		{"RESULT", []string{"\x1b[31m✗ exit 69, attempt 2\x1b[0m", "\x1b[31m✗ exit 69\x1b[0m", "\x1b[31m✗ exit 69\x1b[0m"}},
		{"RESULT", []string{"○ missed (no owner) ×40", "○ missed (no owner) ×40", "○ missed ×40"}},
		{"TIME", []string{"2026-11-20 21:00:05 UTC", "2026-11-20 21:00:05 UTC", "21:00:05 UTC"}},
		{"TIME", []string{"2026-11-19 21:00:05 UTC~", "2026-11-19 21:00:05 UTC~", "19 Nov 21:00:05 UTC~"}},
		{"TIME", []string{"2026-11-19 21:00:00 UTC", "2026-11-19 21:00:00 UTC", "19 Nov 21:00 UTC"}},
		{"TIME", []string{"2026-11-19 21:00:00.250 UTC", "2026-11-19 21:00:00.250 UTC", "19 Nov 21:00:00 UTC"}},
		{"TIME", []string{"2025-11-19 21:00:05 +0530", "2025-11-19 21:00:05 +0530", "19 Nov 2025 21:00:05 +0530"}},
		{"TICK", []string{"Fri 13:56:16 UTC (manual)", "13:56:16 UTC (manual)", "13:56:16 UTC", "13:56:16 UTC", "13:56:16 UTC"}},
		{"TICK", []string{"Sun 1 Nov 01:00 CET … Mon 2 Nov 00:00 CET", "1 Nov 01:00 CET … 2 Nov 00:00 CET", "1 Nov 01:00 CET … 2 Nov 00:00 CET", "1 Nov 01:00 CET … 2 Nov 00:00 CET", "1 Nov 01:00 CET …"}},
		{"EVENT", []string{"20261121T135616.218Z-3fxm-wt5c started on db-1", "started on db-1"}},
	} {
		d := newTestPrinter()
		d.Local = d.Now().Location()

		got := []string{c.want[0]}
		for _, to := range columns[c.head].short {
			got = append(got, shorten(d.Printer, got[len(got)-1], to))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%q, want\n%q", c.head, got, c.want)
		}
	}

	// With --time task, today is not the same day in all rows.
	d := newTestPrinter()
	d.TimeMode = TimeTask
	if got := shortenDate(d.Printer, "2026-11-20 21:00:05 UTC"); got != "20 Nov 21:00:05 UTC" {
		t.Errorf("--time task: %s", got)
	}
}

// Whatever the width is, no line is wider, and columns are left out in the order of their importance.
func TestTable_FitsEachWidth(t *testing.T) {
	heads := []string{"NAMESPACE", "NAME", "SCHEDULE", "NEXT", "LEFT", "LAST", "RESULT", "LAST 10", "STATE", "LABELS"}
	for width := 4; width < 220; width++ {
		d := newTestPrinter()
		d.Terminal = func(any) (int, bool) { return width, true }
		g := &Table{Headers: heads}
		g.AddRow("billing", "nightly-backup-of-the-orders-1", "0 8 * * MON-FRI Berlin, 0 9 * * SAT Berlin", "Mon 02:00 EST", "2d 9h", "15h ago, 41s", d.StateText(task.Succeeded, "succeeded"), "✓✓✓✓✓✓✓✓✓✓", "ok", "team=data,tier=1")
		g.AddRow("日本", "漢字の名前は二倍の幅です", "@daily", d.Paint(Yellow, "paused until Mon 12:00 EST (ann)"), "–", "now", d.StateText(task.Failed, "exit 69, attempt 2"), "–", "failing", "")

		text := g.Render(d.Printer)
		for line := range strings.Lines(text) {
			if n := visibleWidth(line); n > width {
				t.Errorf("%d columns in a terminal of %d: %q", n, width, line)
			}
		}

		for _, whole := range []string{"nightly-backup-of-the-orders-1 ", " Mon 02:00 EST ", " 15h ago"} {
			if width >= 70 && !strings.Contains(text, whole) {
				t.Errorf("a terminal of %d: %q is missing:\n%s", width, whole, text)
			}
		}

		if width == 219 && (!strings.Contains(text, "0 8 * * MON-FRI Berlin, 0 9 * * SAT Berlin") || !strings.Contains(text, "15h ago, 41s")) {
			t.Errorf("a table that fits was shortened:\n%s", text)
		}
	}
}

// visibleWidth returns how many columns of a terminal a line takes.
func visibleWidth(line string) int {
	n := 0
	for _, r := range escapes.ReplaceAllString(strings.TrimRight(line, "\n"), "") {
		if n++; r >= 0x3000 && r < 0xa000 {
			n++
		}
	}
	return n
}

func TestLines_HaveFixedColumns(t *testing.T) {
	l := &Lines{Headers: []string{"TIME", "KIND", "SUBJECT", "EVENT"}, Usual: []string{"2026-10-12 15:04:05 UTC", "cluster", strings.Repeat("x", 28), "20060102T150405.000Z-abcd-efgh dispatched to node-1"}}
	rows := [][]string{l.Headers,
		{"2026-11-20 21:00:05 UTC", "run", "nightly-backup", "20261120T210005.000Z-3fxm succeeded on db-1, decided by a node with a long name"},
		{"2026-11-19 21:00:05 UTC", "task", "a-name-that-is-longer-than-usual-names", "paused by user:ann"}}

	d := newTestPrinter()
	d.Local = d.Now().Location()
	if got, want := l.Format(d.Printer, rows[1]), "2026-11-20 21:00:05 UTC  run      nightly-backup                20261120T210005.000Z-3fxm succeeded on db-1, decided by a node with a long name\n"; got != want {
		t.Errorf("not a terminal:\n%q, want\n%q", got, want)
	}

	d.Terminal = func(any) (int, bool) { return 80, true }
	got := l.Format(d.Printer, rows...)
	want := `TIME                 KIND     SUBJECT                       EVENT
21:00:05 UTC         run      nightly-backup                succeeded on db-1, …
19 Nov 21:00:05 UTC  task     a-name-that-is-longer-than-usual-names  paused by…
`
	if got != want {
		t.Errorf("80 columns:\n%s", got)
	}
	for line := range strings.Lines(got) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}

	// The heading shows that a column is missing.
	d.Terminal = func(any) (int, bool) { return 60, true }
	heading, _, _ := strings.Cut(l.Format(d.Printer, rows...), "\n")
	if strings.Contains(heading, "KIND") || !strings.HasSuffix(heading, " …") || utf8.RuneCountInString(heading) > 60 {
		t.Errorf("60 columns: %q", heading)
	}
}

// The key of a table is whole as long as there is room for it, and other columns give way.
func TestTable_KeepsItsKeyWhole(t *testing.T) {
	const subject = "service:deployment-of-the-european-orders"
	for width := len(subject) + len("  …"); width < 100; width++ {
		d := newTestPrinter()
		d.Terminal = func(any) (int, bool) { return width, true }
		g := &Table{Headers: []string{"STATE", "SUBJECT", "BINDINGS"}, Key: "SUBJECT"}
		g.AddRow("enabled", subject, "billing.editor-service-deployment")

		if text := g.Render(d.Printer); !strings.Contains(text, subject) {
			t.Errorf("a terminal of %d:\n%s", width, text)
		}
	}
}
