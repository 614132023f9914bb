package spool

import (
	"bytes"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// patterns is a matcher that searches lines as the success field of a task does.
type patterns struct {
	wanted, unwanted *regexp.Regexp
	found            bool
}

func (p *patterns) MatchLine(line []byte) {
	if p.unwanted != nil && p.unwanted.Match(line) {
		return
	}

	if !p.found {
		p.found = p.wanted.Match(line)
	}
}

func (p *patterns) Settled() bool { return p.unwanted == nil && p.found }

// However the output is split into writes, a matcher receives each line as if it had come alone, and stores at
// most one.
func TestLines_AreThoseOfTheStream(t *testing.T) {
	long := strings.Repeat("x", longestLine)
	for name, c := range map[string]struct {
		text, pattern string
		found         bool
	}{
		"within a long line":       {long[:longestLine-1] + "!" + long + "\n", "!", true},
		"behind where it is cut":   {long + "!\n", "!", false},
		"after a long line":        {long + long + "\n!\n", "^!$", true},
		"the end of a long line":   {long + "yy\n", "^x+$", true},
		"a long line without end":  {long + long, "^x+$", true},
		"several in one piece":     {"a\nb\n!\nc\n", "^!$", true},
		"nothing behind the last":  {"a\n", "^$", false},
		"an empty one in between":  {"a\n\nb", "^$", true},
		"an empty one at the head": {"\na", "^$", true},
	} {
		for _, piece := range []int{1, 3, 4096, 1 << 20} {
			if piece < 4096 && len(c.text) > 1<<10 {
				continue
			}

			r := &patterns{wanted: regexp.MustCompile(c.pattern)}
			tap := lineSplitter{matcher: r}

			for b := []byte(c.text); len(b) > 0; {
				n := min(piece, len(b))
				tap.addBytes(b[:n])
				b = b[n:]
			}

			tap.flushLine()

			if r.found != c.found {
				t.Errorf("%s, in pieces of %d: found %v, want %v", name, piece, !c.found, c.found)
			}
		}
	}

	r := &patterns{wanted: regexp.MustCompile("!"), unwanted: regexp.MustCompile("no")}
	tap, flood := lineSplitter{matcher: r}, bytes.Repeat([]byte("x"), 1<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)

	for range 200 {
		tap.addBytes(flood)
	}

	runtime.ReadMemStats(&after)

	if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 || cap(tap.part) > 2*longestLine {
		t.Errorf("200 MiB without a newline took %d bytes; a line of %d is kept", grown, cap(tap.part))
	}
}

func BenchmarkLines(b *testing.B) {
	text := bytes.Repeat([]byte("2026-11-20 22:05:00 an ordinary line of some program's output\n"), 512)
	r := &patterns{wanted: regexp.MustCompile("^all done$"), unwanted: regexp.MustCompile("(?i)error")}
	tap := lineSplitter{matcher: r}
	b.SetBytes(int64(len(text)))

	for b.Loop() {
		tap.addBytes(text)
	}
}
