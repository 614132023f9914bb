package executor

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process that its user stops between the fork and its first instruction holds up
// the daemon, which cannot help itself. Not in parallel: what other tests have stopped would be taken for that.
func TestGuard_KillsWhatIsStoppedBeforeItsFirstInstruction(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	forked, ended := make(chan error), make(chan struct{})
	go onThread(func() bool { // orphans come to the first thread
		forked <- cmd.Start()
		<-ended
		return true
	})
	defer close(ended)
	if err := <-forked; err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	defer unix.Kill(pid, unix.SIGKILL)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it stands still", func() bool { st, err := readStat(pid); return err == nil && st.still() })

	g := guard{log: orNop(nil), watch: newWatch(), stuck: stuck{daemon: os.Getpid()}}
	now := time.Now()
	look := func(of ward) {
		g.watch.apply(word{Ward: &of})
		for range 6 {
			g.release(now)
			now = now.Add(guardStuck / 2)
		}
	}
	look(ward{ID: 1, Pid: pid}) // known: what its user does with it is its user's affair
	g.watch.apply(word{End: 1})
	g.release(now)
	if st, err := readStat(pid); err != nil || !st.still() {
		t.Fatalf("what the daemon has told of is killed: %+v, %v", st, err)
	}
	look(ward{ID: 2})
	select {
	case <-gone:
	case <-time.After(patient):
		t.Fatal("it is not killed")
	}
}
