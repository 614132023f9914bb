package output

import (
	"testing"
)

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
