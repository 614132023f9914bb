package process

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// With one pipe, the output has the order in which it was written. With two pipes, each stream has its order, and
// the streams are distinguished.
func TestProcess_Streams(t *testing.T) {
	const script = "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done"
	l := newLauncher(t, spool.Config{})
	l.shell(t, script)

	want := ""
	for i := range 5 {
		want += fmt.Sprintf("out %d\nerr %d\n", i+1, i+1)
	}

	if got := executortest.ReadOutput(t, l.spool, "r1"); got != want {
		t.Errorf("merged: %q", got)
	}

	a := executortest.Assigned("r2", &task.Process{Shell: script})
	a.Output.Streams = task.StreamsApart

	prep, err := l.prepareAttempt(a, executortest.NewToken())
	if err != nil {
		t.Fatal(err)
	}

	if r := l.runPrepared(prep, NewOrders()); r.State != task.Succeeded || r.OutputBytes != 60 {
		t.Fatalf("%+v", r)
	}

	text := executortest.ReadOutput(t, l.spool, "r2")
	list, err := l.spool.Times("default", "job", "r2", 1, 0)
	if err != nil {
		t.Fatal(err)
	}

	got := map[string]string{}
	for i, m := range list {
		end := int64(len(text))
		if i+1 < len(list) {
			end = list[i+1].From
		}
		got[m.Stream] += text[m.From:end]
	}

	if got[task.Stdout] != "out 1\nout 2\nout 3\nout 4\nout 5\n" || got[task.Stderr] != "err 1\nerr 2\nerr 3\nerr 4\nerr 5\n" {
		t.Errorf("apart: %q by %v", got, list)
	}
}

// A task can lower the node's output limit, but not raise it.
func TestProcess_LimitOfTheTask(t *testing.T) {
	l := newLauncher(t, spool.Config{Limit: 8192})

	for limit, kept := range map[task.Size]int{0: 8192, 2048: 2048, 1 << 20: 8192} {
		a := executortest.Assigned("r1", &task.Process{Shell: "head -c 100000 /dev/zero"})
		a.Output = task.Output{Limit: limit, Streams: task.StreamsApart}

		prep, err := l.prepareAttempt(a, executortest.NewToken())
		if err != nil {
			t.Fatal(err)
		}

		r := l.runPrepared(prep, NewOrders())
		got := strings.Count(executortest.ReadOutput(t, l.spool, "r1"), "\x00")
		if !r.Truncated || r.OutputBytes != 100_000 || got != kept {
			t.Errorf("limit %s: %d bytes kept, want %d; of %d, truncated %v", limit, got, kept, r.OutputBytes, r.Truncated)
		}
	}
}

// An output without line breaks does not increase memory, and its end is kept. Only that end is read of the output
// beyond the limit.
func TestProcess_FloodCostsNoMemory(t *testing.T) {
	const size = 1 << 30
	l := newLauncher(t, spool.Config{Limit: 1 << 20})
	l.shell(t, "echo warm")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := l.shell(t, "head -c 1073741824 /dev/zero; echo the end")
	runtime.ReadMemStats(&after)

	if r.State != task.Succeeded || r.OutputBytes != size+8 || !r.Truncated || !strings.HasSuffix(string(r.Tail), "\x00the end\n") {
		t.Errorf("%s, %d bytes, truncated %v, tail %.20q", r.State, r.OutputBytes, r.Truncated, r.Tail)
	}

	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > size/16 {
		t.Errorf("the heap grew by %d bytes", grown)
	}

	// With the race detector, a pool drops one buffer of four. On a busy machine, reads are as small as the writes
	// of 8 KiB. So this much is allocated.
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 2*size {
		t.Errorf("%d bytes of memory were taken for it", allocated)
	}
}

// After the disk is full, no more output is kept, but the run continues. The output before that is kept, and the
// record contains the reason.
func TestProcess_RealFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("carillon-test", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skip("needs root; TestOutput_FullDisk in package spool uses /dev/full instead")
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })

	l := newLauncher(t, spool.Config{Dir: dir})

	for run := range 3 { // the first run fills the disk, and the others find it full
		r := l.shell(t, "head -c 1000000 /dev/zero; echo the end")
		if r.State != task.Succeeded || r.OutputBytes != 1_000_008 || !r.Truncated || !strings.HasSuffix(string(r.Tail), "the end\n") ||
			!strings.Contains(r.Message, "no space left") {
			t.Fatalf("run %d: %s, %d bytes, truncated %v, %s", run, r.State, r.OutputBytes, r.Truncated, r.Message)
		}
	}

	// The first run has the same ID as the others, so its output was renamed.
	var kept int64
	files, _ := filepath.Glob(filepath.Join(dir, "spool", "default", "job", "*.log"))
	for _, path := range files {
		if info, err := os.Stat(path); err == nil {
			kept += info.Size()
		}
	}
	if kept < 100<<10 {
		t.Errorf("what fitted is not there: %d bytes in %q", kept, files)
	}
}

// A process that closes its output, and one whose spool is removed, end like any other.
func TestProcess_OutputThatGoesAway(t *testing.T) {
	for _, streams := range []string{task.StreamsMerged, task.StreamsApart} {
		dir := t.TempDir()
		l := newLauncher(t, spool.Config{Dir: dir})
		path, _ := l.spool.Path("default", "job", "r1", 1)
		run := func(script string) Result {
			t.Helper()
			a := executortest.Assigned("r1", &task.Process{Shell: script})
			a.Output.Streams = streams

			prep, err := l.prepareAttempt(a, executortest.NewToken())
			if err != nil {
				t.Fatal(err)
			}

			return l.runPrepared(prep, NewOrders())
		}

		if r := run("echo one; exec >&- 2>&-; sleep 0.1; exit 3"); r.ExitCode == nil || *r.ExitCode != 3 || string(r.Tail) != "one\n" {
			t.Errorf("%s: closed: %+v", streams, r)
		}

		r := run("echo one; until [ -s " + path + " ]; do sleep 0.01; done; until rm -r " + filepath.Join(dir, "spool") + " 2>/dev/null; do :; done; sleep 0.01; echo two >&2; sleep 0.01; echo three")
		// Two goroutines read the two pipes, so the order of the streams is random.
		other := streams == task.StreamsApart && string(r.Tail) == "one\nthree\ntwo\n"
		if r.State != task.Succeeded || string(r.Tail) != "one\ntwo\nthree\n" && !other {
			t.Errorf("%s: removed: %s, %q", streams, r.State, r.Tail)
		}

		if r := run("echo again"); r.State != task.Succeeded || executortest.ReadOutput(t, l.spool, "r1") != "again\n" {
			t.Errorf("%s: after that: %+v", streams, r)
		}

		if left, _ := filepath.Glob(dir + "/spool/*/*/*.tmp"); len(left) > 0 {
			t.Errorf("%s: left behind: %v", streams, left)
		}
	}
}
