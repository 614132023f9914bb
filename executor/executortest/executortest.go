// Package executortest provides what the tests of the executor and of the packages below it share: attempts, their
// tokens, and functions that wait for processes.
package executortest

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
)

// Assigned returns an ordinary attempt of a process, as it is in a node's inbox.
func Assigned(run string, p *task.Process) task.Assigned {
	return task.Assigned{
		Run: task.Run{
			ID: run, Namespace: "default", Task: "job", UID: "u", Attempt: 1, Trigger: task.TriggerSchedule,
			ScheduledTime: task.At(time.Date(2026, 11, 20, 22, 5, 0, 0, time.UTC)), State: task.Dispatched,
		},
		Instance: "i1", Action: task.Action{Process: p}, KillGrace: task.Duration(time.Minute), Retry: task.Defaults().Retry,
	}
}

// Patience is how long tests wait for something that must happen. On a busy machine, each step may take seconds.
const Patience = 2 * time.Minute

// Eventually polls until cond returns true, and fails the test if that takes longer than Patience.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(Patience)

	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// lastToken is the last token that was given to an attempt. Processes that carry the run id and the token of an
// attempt are killed when it ends, no matter which process started them. So no two attempts may have the same
// token, neither in two tests of this process nor in two processes on this machine.
var lastToken atomic.Int64

func init() { lastToken.Store(rand.Int64N(1 << 40)) }

// NewToken returns a token that no other attempt has.
func NewToken() int64 { return lastToken.Add(1 << 20) }

// LastToken returns the token that NewToken has returned last.
func LastToken() int64 { return lastToken.Load() }

// NoChildren fails the test if this process has children, including zombies.
func NoChildren(t testing.TB) {
	t.Helper()
	if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
		t.Errorf("there is a child left: %d, %v", pid, err)
	}
}

// Alive reports whether a process exists and is not a zombie.
func Alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, found := strings.Cut(string(b[bytes.LastIndexByte(b, ')')+1:]), " ")
	return err == nil && found && rest[0] != 'Z' && rest[0] != 'X'
}

// PIDIn waits for a file to which a shell writes a process number, and returns the number.
func PIDIn(t testing.TB, path string) int {
	t.Helper()
	pid := 0
	Eventually(t, "a process id in "+path, func() bool {
		b, _ := os.ReadFile(path)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return bytes.HasSuffix(b, []byte("\n"))
	})

	return pid
}

// Must fails the test if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// WriteFile writes a file with a mode, whatever the umask is.
func WriteFile(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()

	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// CPU returns the processor time that this process, or its children that have ended, have used. On a busy machine,
// it is a better measure than the wall clock.
func CPU(b *testing.B, who int) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		b.Fatal(err)
	}

	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// WriteProgram writes a program that can be executed at once, even if other tests fork at the same time.
func WriteProgram(t testing.TB, path, text string) {
	t.Helper()
	WriteFile(t, path+".text", text, 0o600)
	Must(t, copyFile(path, path+".text"))
	Must(t, os.Chmod(path, 0o755))
}

// Outputs is the part of a spool that ReadOutput needs.
type Outputs interface {
	Open(namespace, name, run string, attempt int) (io.ReadSeekCloser, error)
}

// ReadOutput returns the whole output of the first attempt of a run of the task in Assigned.
func ReadOutput(t testing.TB, s Outputs, run string) string {
	t.Helper()
	f, err := s.Open("default", "job", run, 1)
	if err != nil {
		t.Fatal(err)
	}

	defer f.Close()

	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}

	return string(b)
}

// copyFile copies a file with another process. A descriptor of this process could be inherited by a concurrent
// fork, and a file that is open for writing cannot be executed.
func copyFile(to, from string) error { return exec.Command("cp", from, to).Run() }
