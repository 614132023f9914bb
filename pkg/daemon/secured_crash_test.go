package daemon_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/task"
)

// A crash is detected with TLS as without. The guardian of the dead daemon connects to an etcd with TLS and users,
// with the password that it reads at that moment. The password is not visible in any other process.
//
// Verifies: G48
func TestDaemon_ACrashIsNoticedByTLSAndItsGuardianLogsIn(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	c, etcd := newSecuredCluster(t, "--shards", "8", "--lease-ttl", aLongLease)
	c.startSecured(etcd, "n1")
	c.startSecured(etcd, "n2")
	c.owned("n1", "n2")
	s := spec("long", "sleep 300")
	s.Target.Selector = "node = n1"
	c.create("n2", s)
	run := c.trigger("n2", "long")
	c.until("n2", "long", run.ID, task.Running)
	eventually(t, func() error {
		if c.nodes["n2"].sum("carillon_peers_reached") != 1 {
			return fmt.Errorf("n2 has not reached n1")
		}
		return nil
	})
	etcd.changePassword("second") // after the daemon has passed everything to its guardian
	c.nodes["n1"].signal(syscall.SIGKILL)
	c.owned("n2")
	c.until("n2", "long", run.ID, task.Lost)
}

func TestDaemon_TellsNoOtherProcessThePassword(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "--shards", "8", "--etcd-user", "carillon")
	n1 := c.node("n1")
	const password = "the-password-of-etcd"
	n1.env = []string{"CARILLON_ETCD_PASSWORD=" + password}
	c.start("n1")
	c.create("n1", spec("child", "sleep 300"))
	run := c.trigger("n1", "child")
	c.until("n1", "child", run.ID, task.Running)
	of, looked := children(t, n1.cmd.Process.Pid), 0
	for _, pid := range of {
		for _, file := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			if err != nil {
				t.Logf("it has ended: %v", err)
				continue
			}
			looked++
			if bytes.Contains(b, []byte(password)) {
				t.Errorf("%s of process %d holds the password", file, pid)
			}
		}
	}
	if looked < 4 {
		t.Errorf("a guardian and a task are expected, there were %v", of)
	}
	if _, err := c.client("n1").Runs.Cancel(t.Context(), "default", "child", run.ID); err != nil {
		t.Error(err)
	}
}

// children returns the children of a process and their children.
func children(t *testing.T, of int) (list []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		rest := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err == nil && len(rest) > 1 && rest[1] == strconv.Itoa(of) {
			list = append(append(list, pid), children(t, pid)...)
		}
	}
	return list
}

// While a cluster migrates to TLS, nodes without TLS reach all others, and both detect each other's crashes once
// all trust the CA. A node with TLS sends no requests to a node without, because others on the network could read
// or change the answer.
//
// Verifies: G48
func TestDaemon_NodesWithAndWithoutTLSUnderstandEachOther(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	c := newCluster(t, "--shards", "8", "--lease-ttl", aLongLease)
	p := newPKI(t)
	var err error
	if c.caller, err = certs.Open(p.client("caller")); err != nil {
		t.Fatal(err)
	}
	f := p.node("n2")
	c.node("n1").plain()
	c.start("n1", "--tls-ca", f.CA)
	c.start("n2", "--tls-ca", f.CA, "--tls-cert", f.Cert, "--tls-key", f.Key)
	c.owned("n1", "n2")
	for _, of := range []string{"n1", "n2"} {
		s := spec("on-"+of, "echo hello from $CARILLON_NODE")
		s.Target.Selector = "node = " + of
		c.create("n1", s)
		run := c.trigger("n1", "on-"+of)
		c.until("n1", "on-"+of, run.ID, task.Succeeded)
		for _, by := range []string{"n1", "n2"} {
			log, err := c.client(by).Logs.Open(t.Context(), "default", "on-"+of, run.ID, client.LogOptions{})
			if of == "n1" && by == "n2" {
				if err == nil || !strings.Contains(err.Error(), "without TLS, but node n2 sends requests to other nodes only over TLS") {
					t.Errorf("a node with TLS asked one without: %v", err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s by %s: %v", of, by, err)
				continue
			}
			if b, err := io.ReadAll(log); err != nil || string(b) != "hello from "+of+"\n" {
				t.Errorf("%s by %s: %q, %v", of, by, b, err)
			}
			log.Close()
		}
	}
	eventually(t, func() error {
		if c.nodes["n1"].sum("carillon_peers_reached") != 1 || c.nodes["n2"].sum("carillon_peers_reached") != 1 {
			return fmt.Errorf("they have not reached each other")
		}
		return nil
	})
	c.nodes["n2"].signal(syscall.SIGKILL)
	c.owned("n1")
}
