//go:build linux && (amd64 || arm64)

package spawn

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const patient = 2 * time.Minute

// TestMain also runs the test binary as a parent with unusual attributes.
func TestMain(m *testing.M) {
	if os.Getenv("SPAWN_TEST_PARENT") != "" {
		playParent()
		return
	}
	os.Exit(m.Run())
}

// playParent starts the shell line in its environment and copies its output.
func playParent() {
	signal.Ignore(unix.SIGUSR1)
	out, err := run(Command{Path: "/bin/sh", Args: []string{"sh", "-c", os.Getenv("SPAWN_TEST_LINE")}})
	fmt.Print(out)
	if err != nil {
		fmt.Println(err)
	}
}

// run starts c on a separate thread and returns its output.
func run(c Command) (string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}

	defer r.Close()

	null, err := os.Open(os.DevNull)
	if err != nil {
		return "", err
	}

	defer null.Close()

	c.Files = [3]uintptr{null.Fd(), w.Fd(), w.Fd()}
	if c.Cgroup == 0 {
		c.Cgroup = -1
	}

	// The thread must outlive the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	p, err := Start(&c)
	w.Close()
	if err != nil {
		return "", err
	}

	if p.PIDFD >= 0 {
		defer unix.Close(p.PIDFD)
	}

	err = p.AwaitExec(time.Now().Add(patient))
	out, rerr := io.ReadAll(r)
	var status syscall.WaitStatus
	_, werr := syscall.Wait4(p.PID, &status, 0, nil)

	if err == nil && status != 0 {
		err = fmt.Errorf("status %#x", status)
	}

	return string(out), errors.Join(err, rerr, werr)
}

// Verifies: G42
func TestStart_Errors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("no format"), 0o644); err != nil {
		t.Fatal(err)
	}

	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("no format"), 0o755); err != nil {
		t.Fatal(err)
	}

	long := strings.Repeat("x", 1<<20)

	for name, c := range map[string]struct {
		command Command
		step    string
		errno   syscall.Errno
	}{
		"no program":        {Command{Path: "/no/such"}, "execve", syscall.ENOENT},
		"not executable":    {Command{Path: file}, "execve", syscall.EACCES},
		"no format":         {Command{Path: text}, "execve", syscall.ENOEXEC},
		"too long":          {Command{Path: "/bin/true", Args: []string{"true", long}}, "execve", syscall.E2BIG},
		"no directory":      {Command{Path: "/bin/true", Dir: "/no/such"}, "chdir", syscall.ENOENT},
		"directory is file": {Command{Path: "/bin/true", Dir: file}, "chdir", syscall.ENOTDIR},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(c.command)
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Step != c.step || e.Errno != c.errno || !errors.Is(err, c.errno) {
				t.Errorf("got %v", err)
			}
		})
	}

	if _, err := run(Command{Path: "/bin/true", Cgroup: 1 << 20}); !errors.Is(err, syscall.EBADF) {
		t.Errorf("an invalid control group: %v", err)
	}

	if _, err := Start(&Command{Path: "/bin/true"}); !errors.Is(err, syscall.EBADF) {
		t.Errorf("descriptor 0 for another process: %v", err)
	}
}

// Verifies: G42
func TestStart_User(t *testing.T) {
	if os.Geteuid() != 0 {
		_, err := run(Command{Path: "/bin/true", User: &syscall.Credential{Uid: 65534, Gid: 65534}})
		if e, ok := errors.AsType[*Error](err); !ok || e.Step != "setgroups" || e.Errno != syscall.EPERM {
			t.Errorf("got %v", err)
		}
		return
	}

	out, err := run(Command{Path: "/bin/sh", Args: []string{"sh", "-c", "id -u; id -g; id -G; pwd"}, Dir: "/usr",
		User: &syscall.Credential{Uid: 65534, Gid: 65533, Groups: []uint32{7, 8}}})
	if want := "65534\n65533\n65533 7 8\n/usr\n"; out != want || err != nil {
		t.Errorf("got %q, %v; want %q", out, err, want)
	}

	if _, err := run(Command{Path: "/bin/true", User: &syscall.Credential{Uid: 1<<32 - 1, Gid: 1}}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("an impossible user: %v", err)
	}
}

// A user with more processes than the limit can still start this one.
//
// Verifies: G42
func TestStart_MaxProcesses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}

	const uid = 65531
	first := exec.Command("sleep", "60")
	first.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}

	defer first.Wait()
	defer first.Process.Kill()

	c := Command{Path: "/bin/sh", Args: []string{"sh", "-c", `while read -r line; do case $line in "Max processes"*) echo $line;; esac; done </proc/self/limits; (true)`}, User: &syscall.Credential{Uid: uid, Gid: uid},
		MaxProcesses: &unix.Rlimit{Cur: 1, Max: 2}}
	out, err := run(c)
	if !strings.HasPrefix(out, "Max processes 1 2 processes\n") || err == nil {
		t.Errorf("got %q, %v; want the limits, and that the shell cannot fork", out, err)
	}
}

// A process inherits nothing from the way in which the parent was started: here under nohup, with blocked signals,
// open descriptors and another limit of open files.
//
// Verifies: G42
func TestStart_InheritsNothing(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", `trap '' HUP INT QUIT TERM; ulimit -Sn 321; exec 9</dev/null; exec "$0"`, os.Args[0])
	cmd.Env = append(os.Environ(), "SPAWN_TEST_PARENT=1", "GORACE=atexit_sleep_ms=0",
		`SPAWN_TEST_LINE=ulimit -Sn; cd /proc/self/fd; echo *; while read -r name value; do case $name in SigBlk:|SigIgn:|SigCgt:) echo $name $value;; esac; done </proc/self/status; read -r pid name state parent group rest </proc/self/stat; echo $$ $group`)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr

	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err, stderr.String())
	}

	lines := strings.Split(string(out), "\n")
	if len(lines) < 6 {
		t.Fatalf("got %q %s", out, stderr.String())
	}

	const none = " 0000000000000000"
	for i, want := range []string{"321", "0 1 2 3", "SigBlk:" + none, "SigIgn:" + none} { // 3 is the shell's descriptor of the directory
		if lines[i] != want {
			t.Errorf("got %q, want %q", lines[i], want)
		}
	}

	if pid, group, _ := strings.Cut(lines[5], " "); pid != group {
		t.Errorf("group %s of process %s", group, pid)
	}
}

// Verifies: G42
func TestStart_Session(t *testing.T) {
	out, err := run(Command{Path: "/bin/sh", Args: []string{"sh", "-c", "cut -d' ' -f5,6 /proc/$$/stat; echo $$ $$"}, Setsid: true})
	if a, b, _ := strings.Cut(strings.TrimSpace(out), "\n"); a != b || err != nil {
		t.Errorf("got %q, %v", out, err)
	}
}

// A held process does nothing until it is released. It ends if it is killed.
//
// Verifies: G42
func TestStart_Held(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}

	defer null.Close()

	fd := null.Fd()

	for _, release := range []bool{true, false} {
		p, err := Start(&Command{Path: "/bin/true", Args: []string{"true"}, Files: [3]uintptr{fd, fd, fd}, Cgroup: -1, Hold: true})
		if err != nil {
			t.Fatal(err)
		}

		defer unix.Close(p.PIDFD)

		if err := p.AwaitExec(time.Now().Add(20 * time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}

		if release {
			p.Release()
		} else if err := unix.Kill(p.PID, unix.SIGKILL); err != nil {
			t.Error(err)
		}

		err = p.AwaitExec(time.Now().Add(patient))
		var status syscall.WaitStatus
		if _, werr := syscall.Wait4(p.PID, &status, 0, nil); err != nil || werr != nil || release != (status == 0) {
			t.Errorf("got %v, %v, status %#x", err, werr, status)
		}
	}
}

// Starts from many threads while the garbage collector runs, goroutines are preempted and signals arrive.
//
// Verifies: G42
func TestStart_UnderPressure(t *testing.T) {
	stop := make(chan struct{})
	var noise sync.WaitGroup

	for range 2 {
		noise.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					runtime.GC()
					_ = unix.Kill(os.Getpid(), unix.SIGURG)
					_ = unix.Kill(os.Getpid(), unix.SIGWINCH)
				}
			}
		})
	}

	defer noise.Wait()
	defer close(stop)

	each := 100
	if testing.Short() {
		each = 10
	}

	before := descriptors(t)
	var all sync.WaitGroup

	for worker := range 8 {
		all.Go(func() {
			for i := range each {
				want := fmt.Sprint(worker, " ", i)
				env := []string{"A=" + want, "FILLER=" + strings.Repeat("x", i*100)}
				if out, err := run(Command{Path: "/bin/sh", Args: []string{"sh", "-c", `echo "$A"`}, Env: env}); out != want+"\n" || err != nil {
					t.Errorf("got %q, %v", out, err)
				}

				if _, err := run(Command{Path: "/no/such", Env: env}); !errors.Is(err, syscall.ENOENT) {
					t.Error(err)
				}
			}
		})
	}

	all.Wait()

	if after := descriptors(t); after > before+1 { // the poller has one
		t.Errorf("%d descriptors before, %d after", before, after)
	}

	if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
		t.Errorf("a child is left: %d, %v", pid, err)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}

	return len(fds)
}

func BenchmarkStart(b *testing.B) {
	for name, f := range map[string]func() error{
		"spawn": func() error { _, err := run(Command{Path: "/bin/true", Args: []string{"true"}}); return err },
		"os/exec": func() error {
			_, err := exec.Command("/bin/true").Output()
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
