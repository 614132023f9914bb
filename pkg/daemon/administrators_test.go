package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// asIntruder makes the test binary connect to the unix socket with this path, as a task would that wants to administer
// the cluster. It writes what it got to the file that is its first argument.
const asIntruder = "TEST_INTRUDER_SOCKET"

// intrude sends a request without a token over a unix socket, and writes the answer to a file.
func intrude(socket, file string) error {
	said := ""
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}

	res, err := (&http.Client{Transport: &http.Transport{DialContext: dial}}).Get("http://carillon/v1/whoami")
	if err == nil {
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		said = fmt.Sprintln(res.StatusCode, string(b))
	} else {
		said = fmt.Sprintln(err)
	}

	groups, err := os.Getgroups()
	if err != nil {
		return err
	}

	if err := os.WriteFile(file+".new", fmt.Appendf(nil, "%d %v %s", os.Getuid(), groups, said), 0o600); err != nil {
		return err
	}

	return os.Rename(file+".new", file)
}

// intrusion is a node on a host on which backup is a member of the group carillon.
type intrusion struct {
	*cluster
	dir, socket, program string
	tried                int
}

const adminGID = 4242

// newIntrusion starts the node, in a mount namespace with another /etc/group.
func newIntrusion(t *testing.T, flags ...string) *intrusion {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can run tasks as other users")
	}

	// The path of a socket must be short, and the users of the tasks must be able to reach it.
	dir, err := os.MkdirTemp("/var/lib", "carillon-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })

	groups, err := os.ReadFile("/etc/group")
	if err != nil {
		t.Fatal(err)
	}
	groups = fmt.Appendf(groups, "carillon:x:%d:backup\n", adminGID)

	i := &intrusion{cluster: newCluster(t, "--shards", "8", "--lease-ttl", "3s"), dir: dir, socket: filepath.Join(dir, "api.sock"), program: filepath.Join(dir, "intruder")}
	daemon := filepath.Join(dir, "daemon")
	script := fmt.Sprintf("#!/bin/sh\nexec unshare --mount --propagation private sh -c 'mount --bind %s/group /etc/group && exec %s \"$@\"' sh \"$@\"\n", dir, os.Args[0])

	err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "group"), groups, 0o644), os.WriteFile(daemon, []byte(script), 0o755),
		exec.Command("cp", os.Args[0], i.program).Run(), os.Mkdir(filepath.Join(dir, "out"), 0o755), os.Chmod(filepath.Join(dir, "out"), 0o777|os.ModeSticky))
	if err != nil {
		t.Fatal(err)
	}

	if out, err := exec.Command("unshare", "--mount", "--propagation", "private", "mount", "--bind", filepath.Join(dir, "group"), "/etc/group").CombinedOutput(); err != nil {
		t.Skipf("cannot replace /etc/group: %v: %s", err, out)
	}

	i.node("n1").exe = daemon
	i.start("n1", append(flags, "--socket", i.socket)...)

	return i
}

// line returns a shell line that tries to use the socket, and the file with the result.
func (i *intrusion) line() (line, file string) {
	i.tried++
	file = fmt.Sprintf("%s/out/%d", i.dir, i.tried)
	return fmt.Sprintf("%s=%s exec %s %s", asIntruder, i.socket, i.program, file), file
}

// attempt runs a task that tries to use the socket, and returns its run and what it got.
func (i *intrusion) attempt(name string, detached bool, change func(*task.Process)) (task.Run, string) {
	i.t.Helper()
	line, file := i.line()
	if detached {
		line = fmt.Sprintf("(setsid sh -c '%s' &); while [ ! -e %s ]; do sleep 0.02; done", line, file)
	}

	s := spec(name, line)
	change(s.Action.Process)
	i.create("n1", s)
	r := i.until("n1", name, i.trigger("n1", name).ID, task.Succeeded, task.Failed)
	got, err := os.ReadFile(file)
	if err != nil && r.State == task.Succeeded {
		i.t.Fatalf("%s: %v", name, err)
	}

	return r, string(got)
}

// TestTasks_AreNoAdministratorsByTheSocket tries to administer the cluster from tasks whose user or groups may do so
// without a token.
//
// Verifies: G39
func TestTasks_AreNoAdministratorsByTheSocket(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	i := newIntrusion(t)

	// An administrator of the host needs no token.
	line, file := i.line()
	admin := exec.Command("/bin/sh", "-c", line)
	admin.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 34, Gid: 34, Groups: []uint32{adminGID}}}
	if out, err := admin.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(got), "34 [4242] 200 ") || !strings.Contains(string(got), `"unix:uid=34"`) {
		t.Errorf("a member of the group: %q, %v", got, err)
	}

	// The namespace default allows every group, but not this one.
	s := spec("grouped", "true")
	s.Action.Process.User, s.Action.Process.Groups = "games", []string{"carillon"}
	if _, err := i.client("n1").Tasks.Create(t.Context(), "default", s); err == nil || !strings.Contains(err.Error(), "must name this group") {
		t.Errorf("a task with the group: %v", err)
	}

	n, err := i.client("n1").Namespaces.Get(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	n.Groups, n.RunAs = append(n.Groups, "carillon"), append(n.RunAs, "backup")
	change, err := i.client("n1").Namespaces.Put(t.Context(), n, client.Writing{})
	if err != nil || len(change.WarningDetails) != 1 || change.WarningDetails[0].Code != task.WarnRootUser || !strings.Contains(change.Warnings[0], `user "backup" is in the group carillon`) {
		t.Errorf("a namespace with a member of the group: %+v, %v", change, err)
	}

	r, got := i.attempt("grouped", false, func(p *task.Process) { p.User, p.Groups = "games", []string{"carillon"} })
	if r.State != task.Failed || r.Reason != task.ReasonPolicy || !strings.Contains(r.Message, "groups: carillon") || got != "" {
		t.Errorf("a task with the group: %s %s: %s; %q", r.State, r.Reason, r.Message, got)
	}

	// A member of the group does not have it in a task.
	if r, got := i.attempt("member", false, func(p *task.Process) { p.User = "backup" }); r.State != task.Succeeded || !strings.HasPrefix(got, "34 [34] ") || !strings.Contains(got, "permission denied") {
		t.Errorf("a task of a member: %s: %s; %q", r.State, r.Message, got)
	}

	for _, detached := range []bool{false, true} {
		_, got := i.attempt(fmt.Sprintf("root-%t", detached), detached, func(p *task.Process) { p.User = "root" })
		if !strings.HasPrefix(got, "0 ") || !strings.Contains(got, " 401 ") || !strings.Contains(got, "belongs to a task") {
			t.Errorf("a task of root, detached: %t: %q", detached, got)
		}
	}
}

// A policy can give tasks the group. Their processes are no administrators nevertheless, also without control groups.
//
// Verifies: G39
func TestTasks_AreNoAdministratorsEvenWithTheGroup(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()

	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte("groups: [carillon]\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	i := newIntrusion(t, "--cgroup", "off", "--policy", policy)

	for _, detached := range []bool{false, true} {
		_, got := i.attempt(fmt.Sprintf("member-%t", detached), detached, func(p *task.Process) { p.User = "backup" })
		if !strings.HasPrefix(got, "34 [34 4242] 401 ") || !strings.Contains(got, "belongs to a task: it is a descendant of the daemon") {
			t.Errorf("detached: %t: %q", detached, got)
		}
	}
}
