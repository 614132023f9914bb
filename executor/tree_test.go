package executor

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// TestTree_FreezeStopsWhatLeftTheGroupToo counts by two processes, of which one
// has a session of its own.
func TestTree_FreezeStopsWhatLeftTheGroupToo(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, SpoolConfig{})
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	count := func(to string) string { return "while :; do echo >> " + to + "; sleep 0.005; done" }
	what, err := l.prepare(assigned("r1", &task.Process{Shell: "setsid /bin/sh -c '" + count(a) + "' & " + count(b)}), 4711)
	if err != nil {
		t.Fatal(err)
	}
	out := l.spool.newOutput(what.path)
	defer out.close()
	o := newOrders()
	p, err := l.start(what, out, o)
	if err != nil {
		t.Fatal(err)
	}
	size := func(path string) int64 {
		info, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	grows := func(path string) func() bool {
		from := size(path)
		return func() bool { return size(path) > from }
	}
	eventually(t, "both count", func() bool { return size(a) > 0 && size(b) > 0 })
	if err := p.tree.freeze(); err != nil {
		t.Fatal(err)
	}
	before := [2]int64{size(a), size(b)}
	time.Sleep(50 * time.Millisecond)
	if after := [2]int64{size(a), size(b)}; after != before {
		t.Errorf("frozen, they counted from %v to %v", before, after)
	}
	if p.tree.empty() {
		t.Error("a frozen tree is said to be empty")
	}
	if err := p.tree.thaw(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a goes on", grows(a))
	eventually(t, "b goes on", grows(b))
	if err := p.tree.freeze(); err != nil {
		t.Fatal(err)
	}
	o.give(kill{cause: causeCancel}) // what is frozen ends, too
	p.wait(what, o)
	if !p.tree.empty() {
		t.Error("something is left")
	}
}
