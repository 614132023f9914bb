package spool

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

// Recorded times are read correctly from every position. A truncated index returns fewer of them, but no wrong
// ones.
func TestTimes_AreReadAsTheyWereNoted(t *testing.T) {
	path := t.TempDir() + "/times"
	rapid.Check(t, func(t *rapid.T) {
		x := times{path: path}
		now, from := time.UnixMilli(1_800_000_000_000), int64(0)
		var want []task.Mark
		for range rapid.IntRange(0, 200).Draw(t, "parts") {
			s := stream(rapid.IntRange(0, 2).Draw(t, "stream"))
			before := x.parts
			if x.addTime(from, now, s); x.parts > before {
				want = append(want, task.Mark{From: from, At: now, Stream: s.String()})
			}

			now = now.Add(rapid.SampledFrom([]time.Duration{0, 400 * time.Microsecond, time.Millisecond, time.Hour}).Draw(t, "pause").Truncate(time.Microsecond))
			from += rapid.Int64Range(1, 1000).Draw(t, "bytes")
		}

		for i := range want {
			want[i].At = time.UnixMilli(want[i].At.UnixMilli())
		}

		index := append(readTimes(path, x.written), x.pending...)

		if x.file != nil {
			_ = x.file.Close()
		}

		same := func(a, b task.Mark) bool { return a.From == b.From && a.Stream == b.Stream && a.At.Equal(b.At) }
		if got := readMarks(index, 0); !slices.EqualFunc(got, want, same) {
			t.Fatalf("read %v\nwant %v", got, want)
		}

		for i, m := range want {
			if got := readMarks(index, m.From); len(got) != len(want)-i || !same(got[0], m) {
				t.Fatalf("from %d: %v", m.From, got)
			}
		}

		cut := rapid.IntRange(0, len(index)).Draw(t, "cut")
		if got := readMarks(index[:cut], 0); !slices.EqualFunc(got, want[:len(got)], same) {
			t.Fatalf("of %d bytes %v", cut, got)
		}
	})
}

// However long and however often an attempt writes, its index stays small.
func TestTimes_AreBounded(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, parts int, step time.Duration, streams int) int64 {
		x := times{path: dir + "/" + name}
		now := time.Now()
		for i := range parts {
			x.addTime(int64(i), now, stream(i%streams))
			now = now.Add(step)
		}

		x.closeIndex(nil)

		return x.indexSize()
	}

	if n := write("year", 365*24*60, time.Minute, 1); n > 2<<20 {
		t.Errorf("a line a minute for a year: %d bytes", n)
	}

	if n := write("fast", 1_000_000, time.Millisecond, 1); n > 1<<19 {
		t.Errorf("a line a millisecond for a quarter of an hour: %d bytes", n)
	}

	if n := write("streams", 200_000, 0, 3); n > 200_000+2*timesStep {
		t.Errorf("200,000 bytes by ever other streams: %d bytes", n)
	}
}

// The output is unchanged. Its times are known while the attempt writes, after its end, and when it is compressed,
// wherever its index is stored.
func TestSpool_TellsWhenThePartsOfAnOutputCame(t *testing.T) {
	for name, lines := range map[string]int{"few": 3, "many": 3000} {
		s := New(Config{Dir: t.TempDir()})
		path, _ := s.Path("default", "job", "r1", 1)
		o := s.NewOutput(path, task.Output{})
		text := strings.Repeat("x", 99) + "\n"
		began := time.Now().Truncate(time.Millisecond)

		for i := range lines {
			if i < 5 {
				time.Sleep(2 * time.Millisecond)
			}
			o.addOutput([]byte(text), stream(i%2+1))
		}

		check := func(when string) {
			t.Helper()
			list, from := []task.Mark(nil), int64(0)
			for {
				part, err := s.Times("default", "job", "r1", 1, from)
				if err != nil {
					t.Fatal(err)
				}

				if len(part) == 0 || len(list) > 0 && part[len(part)-1] == list[len(list)-1] {
					break
				}

				if len(list) > 0 {
					part = part[1:]
				}

				list = append(list, part...)
				from = list[len(list)-1].From
			}

			if len(list) != lines {
				t.Fatalf("%s, %s: %d of %d parts", name, when, len(list), lines)
			}

			for i, m := range list {
				if m.From != int64(i*len(text)) || m.Stream != stream(i%2+1).String() || m.At.Before(began) || m.At.After(time.Now()) || i > 0 && m.At.Before(list[i-1].At) {
					t.Fatalf("%s, %s: part %d is %+v", name, when, i, m)
				}
			}

			if got := readOutput(t, s, "r1"); got != strings.Repeat(text, lines) {
				t.Errorf("%s, %s: the output is %d bytes", name, when, len(got))
			}
		}

		check("while it writes")
		o.Close()
		check("after its end")

		if _, err := os.Stat(timesOf(path)); (err == nil) != (lines > 100) {
			t.Logf("%s: index in a file of its own: %v", name, err == nil) // some file systems have no attributes
		}

		if err := s.packOutput(t.Context(), path); err != nil {
			t.Fatal(err)
		}

		if _, err := os.Stat(path); (err == nil) != (lines < 100) {
			t.Errorf("%s: not compressed: %v", name, err == nil)
		}

		check("compressed")
	}
}
