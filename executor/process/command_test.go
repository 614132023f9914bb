package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/proctree"
)

// commandOf returns a command that runs a shell script.
func commandOf(t *testing.T, script string) *Command {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}

	return &Command{Program: path, Timeout: time.Minute}
}

func TestCommand_HasItsOwnEnvironment(t *testing.T) {
	t.Setenv("CARILLON_ETCD_PASSWORD", "hunter2")
	c := commandOf(t, "env; pwd; echo to stderr >&2; read line || echo no input")
	output, err := c.Run(t.Context(), []string{"CARILLON_ALARM_PROBLEM=etcd_silent"}, proctree.NewOrphans())
	if err != nil {
		t.Fatal(err)
	}

	own := ownAccount()
	for _, want := range []string{"CARILLON_ALARM_PROBLEM=etcd_silent\n", "HOME=" + own.home + "\n", "PATH=/usr/bin:/bin\n", "to stderr\n", "no input\n"} {
		if !strings.Contains(string(output), want) {
			t.Errorf("the output has no %q:\n%s", want, output)
		}
	}
	if strings.Contains(string(output), "hunter2") {
		t.Errorf("the program has the environment of the daemon:\n%s", output)
	}
}

func TestCommand_SaysHowItFails(t *testing.T) {
	for script, want := range map[string]string{"exit 3": "exit 3", "kill -TERM $$": "killed by signal 15 (terminated)"} {
		if _, err := commandOf(t, script).Run(t.Context(), nil, nil); err == nil || err.Error() != want {
			t.Errorf("%s: %v; want %q", script, err, want)
		}
	}

	missing := &Command{Program: "/nonexistent/program", Timeout: time.Minute}
	if _, err := missing.Run(t.Context(), nil, nil); err == nil || !strings.Contains(err.Error(), `program "/nonexistent/program" does not exist`) {
		t.Errorf("a missing program: %v", err)
	}
	unknown := commandOf(t, "true")
	unknown.DefaultUser = "nobody-of-this-name"
	if _, err := unknown.Run(t.Context(), nil, nil); err == nil || !strings.Contains(err.Error(), "does not exist on this node") {
		t.Errorf("an unknown user: %v", err)
	}
}

// The daemon keeps only the end of what a program writes.
func TestCommand_KeepsTheEndOfTheOutput(t *testing.T) {
	output, err := commandOf(t, "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done").Run(t.Context(), nil, nil)
	if err != nil || len(output) != commandOutput || !strings.HasSuffix(string(output), "line 1999\n") {
		t.Errorf("%d bytes, %v: %s", len(output), err, output)
	}
}

func TestCommand_LeavesNothingBehind(t *testing.T) {
	for name, c := range map[string]struct {
		script  string
		timeout time.Duration
		want    string
	}{
		"timeout":     {"sleep 1000 & echo $!; exec sleep 1000", 300 * time.Millisecond, "killed after 300ms"},
		"left behind": {"sleep 1000 >/dev/null 2>&1 & echo $!", time.Minute, "<nil>"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := commandOf(t, c.script)
			cmd.Timeout = c.timeout
			output, err := cmd.Run(t.Context(), nil, nil)
			if fmt.Sprint(err) != c.want {
				t.Errorf("%v; want %s", err, c.want)
			}

			pid, err := strconv.Atoi(strings.TrimSpace(string(output)))
			if err != nil {
				t.Fatal(err)
			}
			for { // init reaps it
				st, err := proctree.ReadStat(pid)
				if err != nil || st.Dead() {
					break
				}
				if t.Context().Err() != nil {
					t.Fatal("a process is left")
				}
			}
		})
	}

	// Processes that the program leaves behind may finish what they write.
	if output, err := commandOf(t, "(sleep 0.1; echo late) &").Run(t.Context(), nil, nil); err != nil || string(output) != "late\n" {
		t.Errorf("%q, %v", output, err)
	}
}

func TestCommand_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := commandOf(t, "exec sleep 1000").Run(ctx, nil, nil); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("%v", err)
	}
}

func TestCommand_RunsOneAtATime(t *testing.T) {
	c := commandOf(t, "true")
	c.busy.Store(true)
	if _, err := c.Run(t.Context(), nil, nil); !errors.Is(err, errStuck) {
		t.Errorf("a second run: %v", err)
	}
}

func TestCommand_RunsAsTheDefaultUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	c := commandOf(t, "id -un")
	for dir := filepath.Dir(c.Program); dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode()&0o001 == 0 && info.Sys().(*syscall.Stat_t).Uid == 0 {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}

	c.DefaultUser = "nobody"
	if output, err := c.Run(t.Context(), nil, nil); err != nil || string(output) != "nobody\n" {
		t.Errorf("%q, %v", output, err)
	}
}
