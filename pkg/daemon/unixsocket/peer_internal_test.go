package unixsocket

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/internal/connlimit"
)

// Environment variables that make the test binary run as a peer.
const (
	peerRole   = "UNIXSOCKET_TEST_ROLE"
	peerSocket = "UNIXSOCKET_TEST_SOCKET"
	peerParent = "UNIXSOCKET_TEST_PARENT" // the process that ends
)

// The roles of a peer. Each writes one byte when it is in the state that its role describes.
const (
	peerConnects = "connects" // connects and stays
	peerLeaves   = "leaves"   // starts a process that connects, in a session of its own, and ends
	peerPasses   = "passes"   // connects, starts a process that inherits the connection, and ends
	peerInherits = "inherits" // has inherited the connection
	peerExecutes = "executes" // connects, and executes another program with the connection
)

func TestMain(m *testing.M) {
	role := os.Getenv(peerRole)
	if role == "" {
		os.Exit(m.Run())
	}

	if err := playPeer(role); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

// playPeer connects to a socket, and stays until the other side closes the connection.
func playPeer(role string) error {
	if role == peerLeaves {
		next := exec.Command("/proc/self/exe")
		next.Env = append(os.Environ(), peerRole+"="+peerConnects)
		next.SysProcAttr = &syscall.SysProcAttr{Setsid: true}

		return next.Start()
	}

	if role == peerInherits {
		for os.Getenv(peerParent) == strconv.Itoa(os.Getppid()) {
			time.Sleep(time.Millisecond)
		}

		return stay(os.NewFile(3, "connection"))
	}

	c, err := net.Dial("unix", os.Getenv(peerSocket))
	if err != nil {
		return err
	}

	f, err := c.(*net.UnixConn).File()
	if err != nil {
		return err
	}

	switch role {
	case peerPasses:
		next := exec.Command("/proc/self/exe")
		next.Env, next.ExtraFiles = append(os.Environ(), peerRole+"="+peerInherits, peerParent+"="+strconv.Itoa(os.Getpid())), []*os.File{f}

		return next.Start()
	case peerExecutes:
		if err := unix.Dup2(int(f.Fd()), 0); err != nil {
			return err
		}
		return syscall.Exec("/bin/sh", []string{"sh", "-c", "echo >&0; read x"}, nil)
	}

	return stay(f)
}

// stay writes one byte, and waits for the end of the connection.
func stay(f *os.File) error {
	if _, err := f.Write([]byte{'.'}); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, f)

	return err
}

// peer starts a process that connects to a socket, and returns the accepted connection when the process is in the state
// that its role describes.
func peer(t *testing.T, l net.Listener, role string, attr syscall.SysProcAttr) net.Conn {
	t.Helper()

	// Other users cannot enter the directory of the test binary.
	program := filepath.Join(filepath.Dir(l.Addr().String()), "peer")
	if _, err := os.Stat(program); err != nil {
		if err := exec.Command("cp", os.Args[0], program).Run(); err != nil {
			t.Fatal(err)
		}
	}

	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), peerRole+"="+role, peerSocket+"="+l.Addr().String())
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &attr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	if err := l.(*net.UnixListener).SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}

	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { c.Close() })

	if role == peerConnects || role == peerExecutes {
		t.Cleanup(func() { c.Close(); _ = cmd.Wait() })
	} else if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}

	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	return c
}

// listen listens on a socket to which every user can connect.
func listen(t *testing.T) net.Listener {
	t.Helper()
	path := filepath.Join(socketDir(t), "api.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { l.Close() })

	for name, mode := range map[string]os.FileMode{path: 0o777, filepath.Dir(path): 0o755} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}

	return l
}

// as returns the attributes of a process of a user whose only group is gid.
func as(uid, gid uint32) syscall.SysProcAttr {
	return syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can connect as somebody else")
	}
}

// The processes have left this one, as those of administrators are not started by the daemon.
//
// Verifies: G39
func TestAdministrators_AreRootTheDaemonsUserAndTheGroup(t *testing.T) {
	needsRoot(t)
	l := listen(t)

	for _, tc := range []struct {
		uid, gid uint32
		users    Administrators
		want     bool
	}{
		{0, 0, Administrators{noGroup: true}, true},
		{4712, 4711, Administrators{gid: 4711}, true},
		{4712, 4712, Administrators{gid: 4711}, false},
		{4712, 0, Administrators{noGroup: true}, false},
	} {
		c := peer(t, l, peerLeaves, as(tc.uid, tc.gid))
		if p, ok := tc.users.Peer(c); !ok || p.UID != tc.uid || p.Trusted != tc.want || p.Refused != "" {
			t.Errorf("user %d of group %d with %+v: %+v, %v", tc.uid, tc.gid, tc.users, p, ok)
		}
	}
}

// Verifies: G39
func TestAdministrators_DescendantsOfTheDaemonAreNone(t *testing.T) {
	needsRoot(t)
	l := listen(t)

	for _, tc := range []struct {
		what, role string
		uid, gid   uint32
		users      Administrators
	}{
		{"root", peerConnects, 0, 0, Administrators{noGroup: true}},
		{"a member of the group", peerConnects, 4712, 4711, Administrators{gid: 4711}},
		{"another program", peerExecutes, 4712, 4711, Administrators{gid: 4711}},
	} {
		p, ok := tc.users.Peer(peer(t, l, tc.role, as(tc.uid, tc.gid)))
		if !ok || p.UID != tc.uid || p.Trusted || !strings.HasSuffix(p.Refused, "belongs to a task: it is a descendant of the daemon") {
			t.Errorf("%s: %+v, %v", tc.what, p, ok)
		}
	}

	// Others need a token anyway, so nothing is found out about them.
	if p, ok := (Administrators{gid: 4711}).Peer(peer(t, l, peerConnects, as(4712, 4712))); !ok || p.Trusted || p.Refused != "" {
		t.Errorf("a user who is not in the group: %+v, %v", p, ok)
	}
}

// Without control groups, the daemon is a subreaper.
//
// Verifies: G39
func TestAdministrators_DescendantsThatLeaveASubreaperAreNone(t *testing.T) {
	needsRoot(t)

	if err := proctree.BecomeSubreaper(); err != nil {
		t.Fatal(err)
	}

	l := listen(t)
	c := peer(t, l, peerLeaves, as(4712, 4711))
	p, ok := (Administrators{gid: 4711}).Peer(c)
	if !ok || p.Trusted || !strings.HasSuffix(p.Refused, "it is a descendant of the daemon") {
		t.Errorf("%+v, %v", p, ok)
	}

	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
		t.Fatal(err)
	}

	c.Close()

	// Reap the process that this one has adopted.
	if _, err := unix.Wait4(-1, nil, 0, nil); err != nil {
		t.Error(err)
	}
}

// A process in the control group of an attempt is not an administrator, even if it has left its parents, and whichever
// daemon has started the attempt.
//
// Verifies: G39
func TestAdministrators_ProcessesInGroupsOfAttemptsAreNone(t *testing.T) {
	needsRoot(t)

	groups, err := cgroup.Open(cgroup.Config{Setting: cgroup.Auto, Node: "n-1", Instance: strings.ToLower(filepath.Base(t.TempDir())) + "unixsocket"})
	if err != nil {
		t.Fatal(err)
	}

	defer groups.Close()

	if !groups.Any() {
		t.Skip(groups.LimitsError())
	}

	l := listen(t)

	for what, limits := range map[string]cgroup.Limits{"without limits": {}, "with limits": {PIDs: 50}} {
		group, err := groups.Acquire(limits)
		if err != nil {
			t.Fatal(err)
		}
		if group.Joins() && group.FD() < 0 {
			t.Skip("processes cannot start in control groups here")
		}

		for _, role := range []string{peerConnects, peerLeaves} {
			attr := as(4712, 4711)
			attr.UseCgroupFD, attr.CgroupFD = true, group.FD()

			c := peer(t, l, role, attr)
			p, ok := (Administrators{gid: 4711}).Peer(c)
			if !ok || p.Trusted || !strings.Contains(p.Refused, "it is in the control group /") {
				t.Errorf("%s, %s: %+v, %v", what, role, p, ok)
			}

			c.Close()
		}

		if err := group.Kill(); err != nil {
			t.Error(err)
		}
		for !group.Empty() {
			time.Sleep(time.Millisecond)
		}

		groups.Release(group)
	}
}

// The connection of a process that has ended could belong to anybody who has inherited it.
//
// Verifies: G39
func TestAdministrators_ProcessesThatHaveEndedAreNone(t *testing.T) {
	needsRoot(t)
	l := listen(t)

	p, ok := (Administrators{gid: 4711}).Peer(peer(t, l, peerPasses, as(4712, 4711)))
	if !ok || p.Trusted || !strings.Contains(p.Refused, "not known") {
		t.Errorf("%+v, %v", p, ok)
	}
}

// Kernels before 6.5 report only the number of the process.
//
// Verifies: G39
func TestProcess_WithAReusedNumberIsAnotherOne(t *testing.T) {
	self := os.Getpid()
	own, err := proctree.ReadStat(self)
	if err != nil {
		t.Fatal(err)
	}

	uid, later := uint32(os.Geteuid()), own
	later.Start++

	for _, tc := range []struct {
		what    string
		process process
		want    string // "": the same process
	}{
		{"the same", process{connlimit.Process{PID: self, PIDFD: -1}, uid, own}, ""},
		{"another start time", process{connlimit.Process{PID: self, PIDFD: -1}, uid, later}, "has ended"},
		{"another user", process{connlimit.Process{PID: self, PIDFD: -1}, uid + 1, own}, "connected as user"},
	} {
		if err := tc.process.checkUnchanged(); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v; want %q", tc.what, err, tc.want)
		}
	}

	ended := exec.Command("true")
	if err := ended.Start(); err != nil {
		t.Fatal(err)
	}

	pidfd, err := unix.PidfdOpen(ended.Process.Pid, 0)
	if err != nil {
		t.Skip(err)
	}

	defer unix.Close(pidfd)

	// A process that has ended and was not reaped has left its control groups of cgroup v1.
	if err := unix.Waitid(unix.P_PID, ended.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}

	zombie, err := proctree.ReadStat(ended.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}

	for _, p := range []process{
		{connlimit.Process{PID: ended.Process.Pid, PIDFD: pidfd, Certain: true}, uid, zombie},
		{connlimit.Process{PID: ended.Process.Pid, PIDFD: -1}, uid, zombie},
	} {
		if err := p.checkUnchanged(); err == nil || !strings.Contains(err.Error(), "has ended") {
			t.Errorf("a process that was not reaped, pidfd %d: %v", p.PIDFD, err)
		}
	}

	if err := ended.Wait(); err != nil {
		t.Fatal(err)
	}

	p := process{connlimit.Process{PID: ended.Process.Pid, PIDFD: pidfd, Certain: true}, uid, own}
	if err := p.checkUnchanged(); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a process that was reaped: %v", err)
	}
}
