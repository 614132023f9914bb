package manifest_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

const aLine = `{"name": "a", "schedule": "@daily", "action": {"noop": {}}}`

func TestReadJSONLines_ABadLineIsWrongAlone(t *testing.T) {
	text := strings.Join([]string{
		"\xef\xbb\xbf" + aLine, "", strings.Replace(aLine, "@daily", "@dayly", 1), "{", aLine + aLine, "[]", "x\x01", `{"name": "` + strings.Repeat("x", 5<<20) + `"}`,
		`  ` + strings.Replace(aLine, `"a"`, `"b", "namespace": "team", "uid": "shown"`, 1) + "\r", `{"nam": "b"}`, strings.Replace(aLine, `"a"`, `"c"`, 1),
	}, "\n")
	var got []string
	for o, err := range manifest.ReadJSONLines("f", iotest.HalfReader(strings.NewReader(text)), "prod") {
		var placed *manifest.Error
		switch {
		case errors.As(err, &placed), errors.As(o.Err, &placed):
			got = append(got, fmt.Sprintf("%s:%d:%d", placed.File, placed.Line, placed.Column))
		case err != nil:
			t.Fatal(err)
		default:
			got = append(got, o.Spec.Namespace+"/"+o.Spec.Name)
		}
	}

	want := "prod/a f:3:15 f:4:2 f:5:60 f:6:1 f:7:2 f:8:1 team/b f:10:2 prod/c"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}

// A line with nothing but a byte order mark is empty.
func TestReadJSONLines_AMarkAloneIsNone(t *testing.T) {
	for text, want := range map[string]int{"\xef\xbb\xbf": 0, "\xef\xbb\xbf \r\n": 0, "\xef\xbb\xbf\n" + aLine: 1} {
		n := 0
		for _, err := range manifest.ReadJSONLines("f", strings.NewReader(text), "prod") {
			if n++; err != nil {
				t.Errorf("%q: %v", text, err)
			}
		}

		if n != want {
			t.Errorf("%q: %d tasks, want %d", text, n, want)
		}
	}
}

func TestReadJSONLines_EndWhenTheReaderFails(t *testing.T) {
	n := 0
	var last error
	for _, err := range manifest.ReadJSONLines("f", io.MultiReader(strings.NewReader(aLine+"\n"+aLine), iotest.ErrReader(os.ErrDeadlineExceeded)), "default") {
		n, last = n+1, err
	}

	if n != 2 || !errors.Is(last, os.ErrDeadlineExceeded) {
		t.Errorf("%d, %v: an incomplete line must not count", n, last)
	}
}

func TestBeginsWithLine(t *testing.T) {
	for text, want := range map[string]bool{
		aLine + "\n": true, "\n \n" + aLine + "\n" + aLine: true, aLine + "\n{": true,
		"": false, "{\n}\n": false, "name: a\n": false, "[]\n": false, "{name: a}\n": false, "{}": false,
		`{"name": "` + strings.Repeat("x", 2<<20) + "\"}\n": false,
	} {
		r := bufio.NewReaderSize(iotest.OneByteReader(strings.NewReader(text)), manifest.MaxLine)
		if len(text) > manifest.MaxLine {
			r = bufio.NewReaderSize(strings.NewReader(text), manifest.MaxLine)
		}

		if got := manifest.BeginsWithLine(r); got != want {
			t.Errorf("%.40q: %v", text, got)
		}

		if b, err := io.ReadAll(r); err != nil || string(b) != text {
			t.Errorf("%.40q: it was read: %v", text, err)
		}
	}
}

func TestCountLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")

	for text, want := range map[string]int{"": 0, "a": 1, "a\n": 1, "a\nb": 2} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		if n, err := manifest.CountLines(path); n != want || err != nil {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}

	for _, path := range []string{filepath.Dir(path), path + "x", "-"} {
		if _, err := manifest.CountLines(path); err == nil {
			t.Errorf("%s has lines", path)
		}
	}
}
