package output

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// testPrinter is a printer with a fixed clock and streams that a test reads.
type testPrinter struct {
	*Printer
	out, errs bytes.Buffer
	env       map[string]string
}

func newTestPrinter() *testPrinter {
	d := &testPrinter{env: map[string]string{}}
	d.Printer = &Printer{
		Out: &d.out, Err: &d.errs, Env: func(k string) string { return d.env[k] },
		Now:      func() time.Time { return time.Date(2026, 11, 20, 22, 12, 0, 0, time.UTC) },
		Terminal: func(any) (int, bool) { return 0, false },
		Format:   FormatTable, TimeMode: TimeRelative, Color: "auto",
	}

	return d
}

func at(s string) task.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return task.At(t)
}

func TestColours_AreLeftOutWhereTheyAreNotWanted(t *testing.T) {
	cases := []struct {
		color string
		tty   bool
		env   map[string]string
		want  bool
	}{
		{"auto", true, nil, true},
		{"auto", false, nil, false},
		{"auto", true, map[string]string{"NO_COLOR": "1"}, false},
		{"auto", true, map[string]string{"TERM": "dumb"}, false},
		{"always", false, map[string]string{"NO_COLOR": "1"}, true},
		{"never", true, nil, false},
	}
	for _, c := range cases {
		d := newTestPrinter()
		d.Color, d.Terminal = c.color, func(any) (int, bool) { return 80, c.tty }
		if c.env != nil {
			d.env = c.env
		}

		if got := d.Paint(Red, "x") != "x"; got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestPaged(t *testing.T) {
	text := strings.Repeat("x", 1<<20)
	for _, c := range []struct {
		pager string
		tty   bool
		want  string
		fails bool
	}{
		{"wc -c | tr -d ' '", true, "1048576\n", false},
		{"wc -c", false, text, false},
		{"", true, text, false},
		{"cat", true, text, false},
		{"head -c 3", true, "xxx", false}, // the user quit early
		{filepath.Join(t.TempDir(), "missing"), true, "", true},
	} {
		var out bytes.Buffer
		p := &Printer{Out: &out, Err: io.Discard, Env: func(name string) string { return map[string]string{"PAGER": c.pager}[name] }}
		p.Terminal = func(any) (int, bool) { return 80, c.tty }
		err := p.WithPager(func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return err
		})

		if out.String() != c.want || (err != nil) != c.fails {
			t.Errorf("%q: %d bytes, %v", c.pager, out.Len(), err)
		}
	}
}
