// Package executortest has what the tests of the executor and of the packages below it share: attempts, their tokens,
// and ways to wait for processes.
package executortest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Assigned is an ordinary attempt of a process, as the inbox of a node has it.
func Assigned(run string, p *task.Process) task.Assigned {
	return task.Assigned{
		Run: task.Run{
			ID: run, Namespace: "default", Task: "job", UID: "u", Attempt: 1, Trigger: task.TriggerSchedule,
			ScheduledTime: task.At(time.Date(2026, 11, 20, 22, 5, 0, 0, time.UTC)), State: task.Dispatched,
		},
		Instance: "i1", Action: task.Action{Process: p}, KillGrace: task.Duration(time.Minute), Retry: task.Defaults().Retry,
	}
}

// Patience is how long tests wait for what is to come: on a machine that others use, too,
// each step may take seconds.
const Patience = 2 * time.Minute

// Eventually polls until cond holds.
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

// lastToken are those that tests have given to attempts. A process that carries the run id and the token of an
// attempt is killed when that ends, whoever started it: no two attempts may have the same ones, neither of two
// tests of this process nor of two processes on this machine.
var lastToken atomic.Int64

func init() { lastToken.Store(rand.Int64N(1 << 40)) }

// NewToken returns a token that no other attempt has.
func NewToken() int64 { return lastToken.Add(1 << 20) }

// LastToken is the token that newToken has returned last.
func LastToken() int64 { return lastToken.Load() }

// NoChildren fails if this process has children, zombies included.
func NoChildren(t testing.TB) {
	t.Helper()
	if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
		t.Errorf("there is a child left: %d, %v", pid, err)
	}
}

// Alive reports whether a process lives. A zombie does not.
func Alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, found := strings.Cut(string(b[bytes.LastIndexByte(b, ')')+1:]), " ")
	return err == nil && found && rest[0] != 'Z' && rest[0] != 'X'
}

// PIDIn reads a process id that a shell has written.
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

// Must fails the test if there is an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
