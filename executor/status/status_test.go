package status

import (
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestTalk_Lines(t *testing.T) {
	t.Parallel()

	for line, want := range map[string]struct {
		percent    float64 // -1: none
		text       string
		results    map[string]string
		checkpoint string
		bad        int
	}{
		"0.4 loading":                 {percent: 40, text: "loading"},
		"40% loading the world":       {percent: 40, text: "loading the world"},
		"12.5%":                       {percent: 12.5},
		"0":                           {percent: 0},
		"1":                           {percent: 100},
		"1.0\tdone\r":                 {percent: 100, text: "done"},
		".5 half":                     {percent: 50, text: "half"},
		"  0.1  blanks  ":             {percent: 10, text: "blanks"},
		"0.5 a=b":                     {percent: 50, text: "a=b"},
		"0.5 \x1b[31mred":             {percent: 50, text: "\x1b[31mred"},
		"1.5 too much":                {percent: -1, bad: 1},
		"101%":                        {percent: -1, bad: 1},
		"-0.5":                        {percent: -1, bad: 1},
		"1e-1":                        {percent: -1, bad: 1},
		"0x1p-1":                      {percent: -1, bad: 1},
		"NaN":                         {percent: -1, bad: 1},
		"0.4loading":                  {percent: -1, bad: 1},
		"loading":                     {percent: -1, bad: 1},
		"rows=5":                      {percent: -1, results: map[string]string{"rows": "5"}},
		"url=https://x/?a=b c":        {percent: -1, results: map[string]string{"url": "https://x/?a=b c"}},
		"empty=":                      {percent: -1, results: map[string]string{"empty": ""}},
		"5rows=5":                     {percent: -1, bad: 1},
		"a b=5":                       {percent: -1, bad: 1},
		"=5":                          {percent: -1, bad: 1},
		"checkpoint row 17":           {percent: -1, checkpoint: "row 17"},
		"checkpoint":                  {percent: -1},
		"checkpoint=17":               {percent: -1, bad: 1},
		"":                            {percent: -1},
		"a=\xff":                      {percent: -1, bad: 1},
		"checkpoint a\x00b":           {percent: -1, bad: 1},
		"x=1\n0.1\ncheckpoint c\nx=2": {percent: 10, results: map[string]string{"x": "2"}, checkpoint: "c"},
		"checkpoint " + strings.Repeat("x", task.MaxCheckpoint+1): {percent: -1, bad: 1},
		"v=" + strings.Repeat("x", task.MaxResultBytes):           {percent: -1, bad: 1},
		"0.5 " + strings.Repeat("ä", 200):                         {percent: 50, text: strings.Repeat("ä", task.MaxProgressText/2)},
	} {
		var s report
		s.addLines([]byte(line + "\n"))

		percent := -1.0
		if s.percent != nil {
			percent = *s.percent
		}

		if percent != want.percent || s.text != want.text || !maps.Equal(s.results, want.results) || s.checkpoint != want.checkpoint || s.bad != want.bad {
			t.Errorf("%.40q: %v %q %v %q, %d bad", line, percent, s.text, s.results, s.checkpoint, s.bad)
		}
	}
}

func TestTalk_ResultsAreBounded(t *testing.T) {
	t.Parallel()
	var s report

	for i := range task.MaxResults + 5 {
		s.addLine([]byte("r" + strconv.Itoa(i) + "=x"))
	}

	s.addLine([]byte("r0=another"))

	if len(s.results) != task.MaxResults || s.bad != 5 || s.results["r0"] != "another" {
		t.Errorf("%d results, %d bad lines, r0 is %q", len(s.results), s.bad, s.results["r0"])
	}

	for range 10 {
		s.addLine([]byte("r1=" + strings.Repeat("x", 3000)))
		s.addLine([]byte("r2=" + strings.Repeat("x", 3000)))
	}

	size := 0
	for name, value := range s.results {
		size += len(name) + len(value)
	}

	if size != s.bytes || size > task.MaxResultBytes {
		t.Errorf("%d bytes, counted as %d", size, s.bytes)
	}
}

// statusFileReader is the status file of an attempt and what was read from it.
type statusFileReader struct {
	*testing.T
	path    string
	file    reader
	report  report
	modTime time.Time
}

// next returns a time that no file has had. Writes of the same length within one tick of the kernel's clock may be
// indistinguishable.
func (s *statusFileReader) next() time.Time {
	s.modTime = s.modTime.Add(time.Second)
	return s.modTime
}

func newStatusFileReader(t *testing.T) *statusFileReader {
	dir, err := os.Open(t.TempDir())
	executortest.Must(t, err)
	t.Cleanup(func() { dir.Close() })
	file := File{Dir: int(dir.Fd()), Name: "status", UID: uint32(os.Geteuid())}

	return &statusFileReader{T: t, path: filepath.Join(dir.Name(), file.Name), file: reader{File: &file}, modTime: time.Now()}
}

func (s *statusFileReader) write(text string) {
	f, err := os.OpenFile(s.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	executortest.Must(s, err)
	_, err = f.WriteString(text)
	executortest.Must(s, err)
	executortest.Must(s, f.Close())
}

func (s *statusFileReader) hear() {
	s.Helper()
	_, err := s.file.readNew(&s.report, false)
	executortest.Must(s, err)
}

func (s *statusFileReader) expect(percent float64, bad int) {
	s.Helper()
	got := -1.0
	if s.report.percent != nil {
		got = *s.report.percent
	}

	if got != percent || s.report.bad != bad {
		s.Errorf("%v%%, %d bad lines; not %v%%, %d", got, s.report.bad, percent, bad)
	}
}

func TestTalkFile_IsReadOn(t *testing.T) {
	t.Parallel()
	k := newStatusFileReader(t)
	k.hear() // does not exist yet
	k.write("0.1\nx=1\n0.2")
	k.hear()
	k.expect(10, 0) // the last line is incomplete
	k.write("5 more\n")
	k.hear()
	k.expect(25, 0)

	if k.report.text != "more" || k.file.at != 18 {
		t.Errorf("%q, read up to %d", k.report.text, k.file.at)
	}

	k.write("0.9")
	k.hear()
	k.expect(25, 0)
	_, err := k.file.readNew(&k.report, true)
	executortest.Must(t, err)
	k.expect(90, 0) // the last line will not be completed
}

// A writer that uses > instead of >> is understood, too.
func TestTalkFile_WrittenAnew(t *testing.T) {
	t.Parallel()
	k := newStatusFileReader(t)
	anew := func(text string) {
		executortest.Must(t, os.WriteFile(k.path, []byte(text), 0o600))
		executortest.Must(t, os.Chtimes(k.path, k.next(), k.next()))
		k.hear()
	}

	anew("0.10 first\n")
	anew("0.20 secnd\n") // of the same length
	k.expect(20, 0)
	anew("0.3\n") // shorter
	k.expect(30, 0)
	anew("0.40 longer than before\n")
	k.expect(40, 0)
	executortest.Must(t, os.Remove(k.path))
	k.hear()
	k.expect(40, 0)
	anew("0.50 longer than before, and another file\n")
	k.expect(50, 0)
	executortest.Must(t, os.Truncate(k.path, 0))
	k.hear()
	k.write("0.6\n")
	k.hear()
	k.expect(60, 0)
	anew("0.61 one\n0.6")
	k.write("2 t") // of a line that is never completed
	k.hear()
	anew("0.70 something else\n")
	k.expect(70, 0)
}

func TestTalkFile_Hostile(t *testing.T) {
	t.Parallel()
	other := filepath.Join(t.TempDir(), "other")
	executortest.Must(t, os.WriteFile(other, []byte("0.5 secret\nsecret=1\n"), 0o600))

	for name, make := range map[string]func(k *statusFileReader){
		"fifo":       func(k *statusFileReader) { executortest.Must(t, unix.Mkfifo(k.path, 0o600)) },
		"symlink":    func(k *statusFileReader) { executortest.Must(t, os.Symlink(other, k.path)) },
		"hard link":  func(k *statusFileReader) { executortest.Must(t, os.Link(other, k.path)) },
		"directory":  func(k *statusFileReader) { executortest.Must(t, os.Mkdir(k.path, 0o700)) },
		"no newline": func(k *statusFileReader) { k.write(strings.Repeat("0.5 x", 40_000)) },
		"binary":     func(k *statusFileReader) { k.write(strings.Repeat("\x00\xff\x1b", 3) + "\n") },
		"sparse": func(k *statusFileReader) {
			k.write("")
			executortest.Must(t, os.Truncate(k.path, 1<<40))
		},
	} {
		k := newStatusFileReader(t)
		make(k)
		k.hear()
		k.hear()
		k.expect(-1, 1)

		if len(k.report.results) > 0 {
			t.Errorf("%s: %v", name, k.report.results)
		}

		executortest.Must(t, os.RemoveAll(k.path))
		k.write("0.7\n")
		k.hear()
		k.expect(70, 1) // a regular file is read again

		if t.Failed() {
			t.Fatal(name)
		}
	}

	if os.Geteuid() == 0 { // the file of another user, which the attempt may have moved there
		k := newStatusFileReader(t)
		k.write("0.5\n")
		executortest.Must(t, os.Chown(k.path, 1, 1))
		k.hear()
		k.expect(-1, 1)
	}
}

// Of a flood, earlier lines may be lost, but not the last ones, and the disk does not fill up.
func TestTalkFile_Flood(t *testing.T) {
	t.Parallel()
	k := newStatusFileReader(t)
	k.write(strings.Repeat("0.1 x\n", readLimit))
	k.write("0.2\n")
	k.hear()
	k.expect(20, 1)
	k.write("0.3\n")
	k.hear()
	k.expect(30, 1)
	executortest.Must(t, os.WriteFile(k.path, []byte(strings.Repeat("0.4 x\n", maxFile/6+readLimit)), 0o600))
	k.hear()
	k.expect(40, 2)

	if info, err := os.Stat(k.path); err != nil || info.Size() != 0 {
		t.Errorf("%v bytes are left: %v", info.Size(), err)
	}

	k.write("0.5\n")
	k.hear()
	k.expect(50, 2)
}

// A checkpoint is for the next attempt, so it is not masked.
func TestReport_MasksProgressAndResults(t *testing.T) {
	s := report{mask: strings.NewReplacer("sesame", "***").Replace}
	for _, line := range []string{"40% open sesame", "key=sesame", "checkpoint sesame"} {
		s.addLine([]byte(line))
	}

	if s.text != "open ***" || s.results["key"] != "***" || s.checkpoint != "sesame" || s.bad != 0 {
		t.Errorf("%+v", s)
	}
}
