package envfile

import (
	"errors"
	"maps"
	"strings"
	"testing"
)

// The expected values are those of systemd 254.
func TestParse(t *testing.T) {
	for in, want := range map[string]map[string]string{
		"": {}, "\n\n  \n": {}, "# A=1\n;B=2\n": {},
		"A=1":                         {"A": "1"},
		"A=1\r\nB=2\r\n":              {"A": "1", "B": "2"},
		"A='1'\r\n\r\n# c\r\nB= \r\n": {"A": "1", "B": ""},
		"A=\"1\r\n2\"\r\nB=1":         {"A": "1\r\n2", "B": "1"},
		"A=one\\\r\ntwo":              {"A": "onetwo"},
		"  A =  x y  \nB=":            {"A": "x y", "B": ""},
		"A=\nB=1":                     {"A": "", "B": "1"},
		"A=1\nA=2":                    {"A": "2"},
		"A='a b \\n # \"'":            {"A": "a b \\n # \""},
		`A="a\"b\\c\$d\e"`:            {"A": `a"b\c$d\e`},
		"A=\"one\\\ntwo\"":            {"A": "onetwo"},
		"A=\"one\ntwo\"\nB=1":         {"A": "one\ntwo", "B": "1"},
		"A=one\\\ntwo":                {"A": "onetwo"},
		`A='one' "two"`:               {"A": "onetwo"},
		`A=it\'s\ `:                   {"A": "it's "},
		`A=don't`:                     {"A": "don't"},
		"A=a#b=c":                     {"A": "a#b=c"},
		"# ends in \\\nA=1\nB=2":      {"B": "2"},
		"A='x'   ":                    {"A": "x"},
		"A='x' y":                     {"A": "xy"},
	} {
		got, err := Parse([]byte(in))
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestParse_RefusesWithoutTellingWhatStandsThere(t *testing.T) {
	for in, line := range map[string]int{
		"hunter2": 1, "A=1\nhunter2\n": 2, "export HUNTER2=hunter2": 1, "1A=hunter2": 1, "A='hunter2": 1, "\nA=\"hunter2\\": 2,
		"=hunter2": 1, "CARILLON_X=hunter2": 1, "A=hunter2\x00": 1, "A=hunter2\\\x00": 1, "HUNTER-2=hunter2": 1,
	} {
		_, err := Parse([]byte(in))
		var e *Error
		if !errors.As(err, &e) || e.Line != line {
			t.Errorf("%q: %v; want line %d", in, err, line)
		} else if strings.Contains(strings.ToLower(err.Error()), "hunter") {
			t.Errorf("%q: the error reveals the value: %v", in, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("A=1\nB='x'\n# c\\\nC=\"a\\\"\"")
	f.Fuzz(func(t *testing.T, in string) {
		values, err := Parse([]byte(in))
		for name, v := range values {
			if name == "" || strings.ContainsRune(v, 0) || err != nil {
				t.Errorf("%q: %q=%q, %v", in, name, v, err)
			}
		}
	})
}
