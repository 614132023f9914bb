package logs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// merging returns a merger of two tasks that writes to out.
func merging(out io.Writer, tty bool, output string, tasks ...string) (*Merger, []*RunOutput) {
	a := factory.New(factory.IO{Out: out, Err: io.Discard, Env: func(string) string { return "" }})
	a.Format, a.Color, a.NamespaceFlag = output, "never", "default"
	a.Terminal = func(stream any) (int, bool) { return 80, tty && stream == out }

	var refs []selection.Ref
	for _, name := range tasks {
		refs = append(refs, selection.Ref{Namespace: "default", Name: name})
	}

	m := NewMerger(a, refs)
	var outputs []*RunOutput
	for _, r := range refs {
		outputs = append(outputs, m.Output(task.Run{Namespace: r.Namespace, Task: r.Name, ID: "id-" + r.Name}))
	}

	return m, outputs
}

// In whatever order the outputs of several tasks arrive, each line is complete and prefixed with its task's
// name, and the whole output of a task is there, in order.
//
// Verifies: G47
func TestMerger_NeverTearsLines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var out bytes.Buffer
		_, outputs := merging(&out, false, output.FormatTable, "a", "b-long")

		wrote := make([]string, len(outputs))
		for range rapid.IntRange(1, 40).Draw(t, "writes") {
			i := rapid.IntRange(0, 1).Draw(t, "lane")
			text := rapid.StringOfN(rapid.SampledFrom([]rune{'x', 'é', '\n', '\r', '\x1b', ' '}), 0, 8, -1).Draw(t, "text")
			if text = strings.Replace(text, "é", "\xc3", 1); rapid.Bool().Draw(t, "flush") {
				outputs[i].flushLate()
			}

			_, _ = outputs[i].Write([]byte(text))
			wrote[i] += text
		}

		for _, l := range outputs {
			l.endOutput()
		}

		got := make([]string, len(outputs))
		for line := range strings.Lines(out.String()) {
			switch {
			case strings.HasPrefix(line, "a      | "):
				got[0] += line[9:]
			case strings.HasPrefix(line, "b-long | "):
				got[1] += line[9:]
			default:
				t.Fatalf("line %q of\n%s", line, &out)
			}
		}

		for i := range got {
			// If a line was flushed before its end and another task's line followed, it becomes two lines;
			// otherwise it stays one.
			if strings.ReplaceAll(got[i], "\n", "") != strings.ReplaceAll(wrote[i], "\n", "") {
				t.Fatalf("task %d wrote %q, and %q is shown", i, wrote[i], got[i])
			}
		}
	})
}

// Without a terminal, the output of a single task is copied byte by byte.
func TestMerger_IsExactForOneTask(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var out bytes.Buffer
		_, outputs := merging(&out, false, output.FormatTable, "a")

		wrote := []byte{}
		for _, b := range rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, "writes") {
			_, _ = outputs[0].Write(b)
			if wrote = append(wrote, b...); len(b)%3 == 0 {
				outputs[0].flushLate()
			}
		}

		outputs[0].endOutput()

		if !bytes.Equal(out.Bytes(), wrote) {
			t.Fatalf("wrote %q, shown %q", wrote, &out)
		}
	})
}

// On a terminal, control characters are replaced.
func TestMerger_IsHarmlessOnATerminal(t *testing.T) {
	var out bytes.Buffer
	_, outputs := merging(&out, true, output.FormatTable, "a", "b")
	_, _ = outputs[0].Write([]byte("\x1b[2Jred\x07\r\n10%\r20%\rdone\n"))
	_, _ = outputs[1].Write([]byte("é\xff\tx\n"))

	want := "a | \uFFFD[2Jred\uFFFD\na | 10%\na | 20%\na | done\nb | é\uFFFD\tx\n"
	if out.String() != want {
		t.Errorf("shown %q, want %q", &out, want)
	}
}

// An incomplete line is shown after a short time and continued later. Characters are not split.
func TestMerger_ShowsALineThatIsNotEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		_, outputs := merging(&out, true, output.FormatTable, "a", "b")
		steps := []struct {
			lane int
			text string
			want string
		}{
			{0, "sure? \xc3", "a | sure? "},
			{0, "\xa9 ", "a | sure? é "},
			{1, "other\n", "a | sure? é \nb | other\n"},
			{0, "yes\n", "a | sure? é \nb | other\na | yes\n"},
		}
		for _, s := range steps {
			_, _ = outputs[s.lane].Write([]byte(s.text))
			time.Sleep(unendedFor + time.Millisecond)
			synctest.Wait()

			if out.String() != s.want {
				t.Fatalf("after %q: %q, want %q", s.text, &out, s.want)
			}
		}

		for _, l := range outputs {
			l.endOutput()
		}
	})
}

// Lines of followed runs are printed in the order in which they were written, if they are read at about the
// same time. They are printed at the end of their run at the latest.
func TestMerger_SettlesTheOrderOfLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		m, outputs := merging(&out, false, output.FormatTable, "a", "b")
		t0 := time.Now()
		add := func(lane, ms int, text string) {
			if err := outputs[lane].addPiece(client.LogPiece{Time: task.At(t0.Add(time.Duration(ms) * time.Millisecond)), Text: []byte(text)}); err != nil {
				t.Fatal(err)
			}
		}

		shown := func(want string) {
			t.Helper()
			synctest.Wait()
			m.mu.Lock() // a timer writes as well
			defer m.mu.Unlock()

			if out.String() != want {
				t.Fatalf("%q, want %q", &out, want)
			}
		}

		held := func() int {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.pendingBytes
		}

		add(1, 3, "three\n")
		time.Sleep(reorderWindow / 2)
		add(0, 1, "one\n")
		add(0, 2, "two\n")
		add(0, 4, "four\n")
		shown("")
		time.Sleep(reorderWindow/2 + time.Millisecond)
		want := "a | one\na | two\nb | three\n"
		shown(want)
		time.Sleep(reorderWindow / 2)
		want += "a | four\n"
		shown(want)
		add(1, 7, "seven\n")
		add(0, 6, "six\n")
		add(0, 5, "another node's\n")
		add(0, 8, "eight")
		outputs[0].endOutput()
		want += "a | six\na | another node's\nb | seven\na | eight\n"
		shown(want)

		for range 100 {
			add(1, 9, strings.Repeat("x", 20<<10)+"\n")
			if n := held(); n > maxPendingBytes {
				t.Fatalf("%d bytes are held back", n)
			}
		}

		outputs[1].endOutput()

		if n := held(); n != 0 {
			t.Errorf("%d bytes are held back for ever", n)
		}
	})
}

func TestMerger_BoundsWhatItHolds(t *testing.T) {
	_, outputs := merging(io.Discard, true, output.FormatTable, "a", "b")
	block := bytes.Repeat([]byte("x"), 32<<10)

	for range 100 { // 3 MB
		_, _ = outputs[0].Write(block)
		if n := cap(outputs[0].bufferOf("").held); n > 8*maxUnended {
			t.Fatalf("it holds %d bytes", n)
		}
	}
}

func TestMerger_WritesLinesForPrograms(t *testing.T) {
	var out bytes.Buffer
	_, outputs := merging(&out, false, output.FormatJSONL, "a", "b")
	outputs[1].attempt = 2
	_, _ = outputs[1].Write([]byte("one\n\"two\x1b"))
	outputs[1].endOutput()
	want := `{"namespace":"default","task":"b","run":"id-b","attempt":2,"text":"one"}` + "\n" +
		`{"namespace":"default","task":"b","run":"id-b","attempt":2,"text":"\"two\u001b","unended":true}` + "\n"
	if out.String() != want {
		t.Errorf("wrote %s", &out)
	}
}

// A failure to write ends all writers.
func TestMerger_TellsThatNobodyReads(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}

	_ = r.Close()
	defer w.Close()

	m, outputs := merging(w, false, output.FormatTable, "a", "b")
	var wg sync.WaitGroup

	for i, l := range outputs {
		wg.Go(func() {
			if _, err := fmt.Fprintf(l, "%d\n", i); err == nil {
				t.Error("the output continues")
			}
		})
	}

	wg.Wait()

	if m.writeError() == nil {
		t.Error("the merger does not know")
	}
}

// A task always has the same color, whatever other tasks there are.
func TestMerger_ColoursAreStable(t *testing.T) {
	r := task.Run{Namespace: "default", Task: "nightly-backup"}
	if colourOf(r) != colourOf(task.Run{Namespace: "default", Task: "nightly-backup", ID: "another"}) {
		t.Error("its colour changes from run to run")
	}

	used := map[output.Color]bool{}
	for i := range 40 {
		used[colourOf(task.Run{Namespace: "default", Task: fmt.Sprint("t", i)})] = true
	}

	if len(used) < 6 {
		t.Errorf("%d colours for 40 tasks", len(used))
	}
}

// The output of a task cannot control the terminal, in any form of logs.
func TestMerger_ShowsNothingThatATerminalObeys(t *testing.T) {
	for _, evil := range factorytest.Hostile {
		for _, format := range []string{output.FormatTable, output.FormatJSONL} {
			for _, timestamps := range []bool{false, true} {
				d := factorytest.New("")
				d.Format, d.Terminal = format, func(any) (int, bool) { return 80, true }

				m := NewMerger(d.Factory, []selection.Ref{{Namespace: "default", Name: "a"}, {Namespace: "default", Name: "b"}})
				m.timestamps, m.patient = timestamps, true

				l := m.Output(task.Run{ID: "i", Namespace: "default", Task: "a", State: task.Failed})
				if err := l.addPiece(client.LogPiece{Text: []byte("x" + evil + "y\n"), Stream: task.Stderr, Time: factorytest.At("2026-11-20T22:00:00Z")}); err != nil {
					t.Fatal(err)
				}

				l.endOutput()

				if what := factorytest.Obeyed(d.Out.String()); what != "" {
					t.Errorf("%q, -o %s: %q is shown", evil, format, what)
				}
			}
		}
	}
}
