package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

func programRunner(t *testing.T) *Runner {
	t.Helper()
	ru, err := New(Config{Node: "n1", Instance: "i1", Dir: t.TempDir(), Spool: spool.New(spool.Config{Dir: t.TempDir()})})
	if err != nil {
		t.Fatal(err)
	}

	return ru
}

func TestRunner_RunsAProgramAsTheUser(t *testing.T) {
	t.Setenv("SECRET_OF_THE_DAEMON", "x")
	ru, p, name := programRunner(t), &task.Process{Command: []string{"true"}}, ownAccount().name
	if os.Geteuid() == 0 {
		p.User, name = "nobody", "nobody"
	}

	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for at := dir; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o777); err != nil {
			t.Fatal(err)
		}
	}

	script := `cat >` + dir + `/in; { id -un; echo "$1 $LOGNAME $PWD ${SECRET_OF_THE_DAEMON-none}"; } >` + dir + `/out`
	if err := ru.RunProgram(t.Context(), Program{Path: "/bin/sh", Args: []string{"-c", script, "sh", "a b"}, Stdin: []byte("text"), For: p}); err != nil {
		t.Fatal(err)
	}

	in, _ := os.ReadFile(dir + "/in")
	out, _ := os.ReadFile(dir + "/out")
	if string(in) != "text" || string(out) != name+"\na b "+name+" / none\n" {
		t.Errorf("got %q, and %q", in, out)
	}
}

func TestRunner_SaysWhyAProgramFailed(t *testing.T) {
	ru := programRunner(t)
	err := ru.RunProgram(t.Context(), Program{Path: "/bin/sh", Args: []string{"-c", "echo no such host; yes | head -c 100000; exit 68"}})
	if err == nil || !strings.HasPrefix(err.Error(), "/bin/sh: exit status 68: no such host") || len(err.Error()) > 600 {
		t.Errorf("got %v", err)
	}
	if err := ru.RunProgram(t.Context(), Program{Path: "/no/such"}); err == nil {
		t.Error("a program that does not exist ran")
	}
	if err := ru.RunProgram(t.Context(), Program{Path: "/bin/true", For: &task.Process{User: "no-such-user"}}); err == nil {
		t.Error("ran as a user that does not exist")
	}
}

func TestRunner_KillsAProgramWithItsGroup(t *testing.T) {
	ru, dir := programRunner(t), t.TempDir()
	why := errors.New("long enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		executortest.PIDIn(t, filepath.Join(dir, "pid"))
		cancel(why)
	}()

	began := time.Now()
	err := ru.RunProgram(ctx, Program{Path: "/bin/sh", Args: []string{"-c", "sleep 300 & echo $! >" + dir + "/pid; wait"}})
	if !errors.Is(err, why) || time.Since(began) > executortest.Patience {
		t.Errorf("got %v", err)
	}

	pid := executortest.PIDIn(t, filepath.Join(dir, "pid"))
	executortest.Eventually(t, "its child is dead", func() bool { return !executortest.Alive(pid) })
}
