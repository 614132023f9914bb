package daemon_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestGuardianClear_EndsWhatDaemonAndGuardianLeft tests a daemon and a guardian that were killed together. Before
// the next daemon starts, no process may be in their control groups and none of the groups may exist.
func TestGuardianClear_EndsWhatDaemonAndGuardianLeft(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "--shards", "4")
	p := c.start("cleared")
	marks := t.TempDir()
	c.create("cleared", spec("daemonizes", `setsid env -i sh -c 'echo $$ >`+marks+`/pid; trap "" TERM; while :; do sleep 1; done' >/dev/null 2>&1 & sleep 300`))
	c.trigger("cleared", "daemonizes")
	pid := pidIn(t, marks+"/pid")
	clearing := func() (string, error) {
		cmd := exec.Command(p.cmd.Path, "guardian", "clear", "--config", filepath.Join(marks, "agent.yaml"))
		cmd.Env = append(os.Environ(), asDaemon+"=1", raceOptions)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if err := os.WriteFile(filepath.Join(marks, "agent.yaml"), []byte("data_dir: "+p.dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(p.grouped(true)) == 0 { // a host without control groups
		if said, err := clearing(); err != nil {
			t.Errorf("%v: %s", err, said)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
		return
	}
	if said, err := clearing(); err == nil || !strings.Contains(said, "another daemon is running on it") || !alive(pid) {
		t.Errorf("it does not leave a living daemon's alone: %v: %s", err, said)
	}
	guardian := pidIn(t, filepath.Join(p.dir, "guardian.lock"))
	p.signal(syscall.SIGSTOP) // so that it does not start another guardian
	_ = syscall.Kill(guardian, syscall.SIGKILL)
	p.signal(syscall.SIGKILL)
	if !alive(pid) {
		t.Fatal("another process ended it")
	}
	if said, err := clearing(); err != nil {
		t.Errorf("%v: %s", err, said)
	}
	if left := p.grouped(true); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if said, err := clearing(); err != nil { // there is nothing left to remove
		t.Errorf("%v: %s", err, said)
	}
}
