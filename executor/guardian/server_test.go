package guardian

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/proctree"
)

// newTestServer returns a guardian that knows nothing.
func newTestServer() server {
	return server{log: zap.NewNop(), watch: newWatchList(), killed: map[uint64]time.Duration{}}
}

// sleeper starts a process of an attempt, in its own process group.
func sleeper(t *testing.T, m proctree.Mark) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	cmd.Env = append(os.Environ(), proctree.EnvRunID+"="+m.RunID, proctree.EnvToken+"="+fmt.Sprint(m.Token))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	executortest.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})

	return cmd
}

// An attempt is announced before its process exists. If the daemon freezes in between, there is nothing to kill. The
// process may start after a renewal, and has to be killed if the daemon freezes again.
//
// Verifies: G17
func TestServer_KillsWhatStartedAfterTheFirstFreeze(t *testing.T) {
	g := newTestServer()
	mark := proctree.Mark{RunID: "frozen-twice", Token: executortest.NewToken()}
	a := Attempt{ID: 1, Mark: mark, Session: 1, Silence: time.Minute}
	now := proctree.BootTime()

	g.watch.applyMessage(Message{Attempt: &a})
	g.watch.applyMessage(Message{Session: &Session{ID: 1, Renewed: now - 3*time.Minute}})
	g.killOverdue(t.Context(), now)

	g.watch.applyMessage(Message{Session: &Session{ID: 1, Renewed: now - 2*time.Minute}})
	birth := proctree.Birth{From: proctree.BootTime()}
	cmd := sleeper(t, mark)
	a.Pid, a.From, a.To = cmd.Process.Pid, birth.From, proctree.BootTime()
	g.watch.applyMessage(Message{Attempt: &a})

	// The freeze is over before the guardian looks again, and the session is overdue again.
	g.killOverdue(t.Context(), now)
	if executortest.Alive(cmd.Process.Pid) {
		t.Fatal("the process is alive although its session was silent for too long")
	}

	// Each deadline is used once.
	if g.killed[1] != now-time.Minute {
		t.Errorf("killed at %v", g.killed)
	}

	g.watch.applyMessage(Message{End: 1})
	g.killOverdue(t.Context(), now)
	if len(g.killed) > 0 {
		t.Errorf("an attempt that has ended is kept: %v", g.killed)
	}
}

func TestServer_KillsTheDaemonWhenItsHTTPAttemptsAreOverdue(t *testing.T) {
	now := time.Hour

	for name, c := range map[string]struct {
		messages []Message
		checked  time.Duration // the time of the check before; 0: there was none
		dies     bool
	}{
		"silent": {messages: []Message{{Remote: &Remote{1, 10 * time.Second}}, {Session: &Session{1, now - 11*time.Second}}}, dies: true},
		"renewed": {messages: []Message{{Remote: &Remote{1, 10 * time.Second}}, {Session: &Session{1, now - 11*time.Second}},
			{Session: &Session{1, now - 9*time.Second}}}},
		"unknown session": {messages: []Message{{Remote: &Remote{1, 10 * time.Second}}, {Session: &Session{2, now - 11*time.Second}}}},
		"withdrawn": {messages: []Message{{Remote: &Remote{1, 10 * time.Second}}, {Session: &Session{1, now - 11*time.Second}},
			{Remote: &Remote{1, 0}}}},
		"no HTTP attempts": {messages: []Message{{Session: &Session{1, now - time.Minute}}}},
		"the guardian was frozen, too": {messages: []Message{{Remote: &Remote{1, 10 * time.Second}}, {Session: &Session{1, now - time.Minute}}},
			checked: now - ownFreeze - 1},
		"the guardian runs": {messages: []Message{{Remote: &Remote{1, 10 * time.Second}}, {Session: &Session{1, now - time.Minute}}},
			checked: now - ownFreeze, dies: true},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := sleeper(t, proctree.Mark{})
			fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
			executortest.Must(t, err)
			defer unix.Close(fd)

			g := newTestServer()
			g.daemon, g.lastCheck = &daemonProcess{pid: cmd.Process.Pid, pidfd: fd}, c.checked
			for _, x := range c.messages {
				g.watch.applyMessage(x)
			}
			g.killDaemon(now)

			if dies := g.daemon == nil; dies != c.dies {
				t.Fatalf("killed: %v, want %v", dies, c.dies)
			}
			if c.dies {
				if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
					t.Errorf("it ended with %v", err)
				}
			}

			// It has had its time after wakeLimit.
			if g.killDaemon(now + wakeLimit); c.checked > 0 && g.daemon != nil {
				t.Error("it is not killed later either")
			}
		})
	}
}

func TestWatchList_KeepsSessionsWithHTTPAttempts(t *testing.T) {
	w := newWatchList()
	w.applyMessage(Message{Session: &Session{ID: 1, Renewed: 1}})
	w.applyMessage(Message{Remote: &Remote{Session: 1, Silence: time.Second}})
	w.applyMessage(Message{Session: &Session{ID: 2, Renewed: 2}})
	if _, ok := w.sessions[1]; !ok {
		t.Error("a session with HTTP attempts was dropped")
	}

	w.applyMessage(Message{Remote: &Remote{Session: 1}})
	w.applyMessage(Message{Session: &Session{ID: 3, Renewed: 3}})
	if _, ok := w.sessions[1]; ok {
		t.Error("a session without attempts is kept")
	}
}

// Only the parent of the guardian is the daemon.
func TestOpenDaemon(t *testing.T) {
	if d := openDaemon(os.Getppid()); d == nil {
		t.Error("the parent was not opened")
	} else if d.pidfd >= 0 {
		unix.Close(d.pidfd)
	}

	cmd := sleeper(t, proctree.Mark{})
	if openDaemon(0) != nil || openDaemon(cmd.Process.Pid) != nil {
		t.Error("another process counts as the daemon")
	}
}
