package output

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"
)

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
