package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/pkg/task"
)

const canary = "canary-4bd1"

// TestEnvFrom_Order tests that later sources override earlier ones, env overrides all sources, the run's variables
// override env, and Carillon's variables override everything.
func TestEnvFrom_Order(t *testing.T) {
	t.Parallel()
	n := newNode(t, newEtcd(t), withSecrets(map[string]string{"A": "secret", "B": "secret", "C": "secret", "D": "secret", "CARILLON_TASK": "secret"}, nil))
	file := filepath.Join(n.dir, "env")
	executortest.WriteFile(t, file, "A=file\nB=file\nX='a b'\n", 0o600)
	n.join()
	n.assign("r1", `env > @out`, func(a *task.Assigned) {
		a.Action.Process.EnvFrom = []task.EnvFrom{{File: file}, {Secret: "db"}, {Secret: "db", Prefix: "DB_", Keys: map[string]string{"A": "PASSWORD"}},
			{File: "/no/such/file", Optional: true}}
		a.Action.Process.Env, a.Env = map[string]string{"C": "env", "D": "env"}, map[string]string{"D": "run"}
	})

	n.endedAs("r1", task.Succeeded)
	b, err := os.ReadFile(n.dir + "/out")
	if err != nil {
		t.Fatal(err)
	}

	out := "\n" + string(b)

	for _, want := range []string{"A=secret", "B=secret", "C=env", "D=run", "X=a b", "DB_PASSWORD=secret", "CARILLON_TASK=job"} {
		if !strings.Contains(out, "\n"+want+"\n") {
			t.Errorf("no %s in %s", want, out)
		}
	}

	if strings.Contains(out, "DB_A=") {
		t.Error("a name exists that is not in keys")
	}
}

// TestEnvFrom_WhatCannotBeHadFailsTheAttempt tests that a missing source fails the attempt, with a message that
// contains no value.
func TestEnvFrom_WhatCannotBeHadFailsTheAttempt(t *testing.T) {
	t.Parallel()
	n := newNode(t, newEtcd(t), withSecrets(map[string]string{"A": canary}, map[string]error{
		"none": fmt.Errorf("secret default/none: %w", task.ErrNotFound), "bad": errors.New("cannot be decrypted"),
	}))
	bad := filepath.Join(n.dir, "bad")
	executortest.WriteFile(t, bad, "A=1\n"+canary+"\n", 0o600)
	n.join()

	for i, c := range []struct {
		from task.EnvFrom
		want string
	}{
		{task.EnvFrom{Secret: "none"}, "env_from[0]: secret none does not exist in namespace default"},
		{task.EnvFrom{Secret: "bad"}, "env_from[0]: secret bad: cannot be decrypted"},
		{task.EnvFrom{Secret: "db", Keys: map[string]string{"B": "B"}}, `env_from[0]: secret db does not contain "B"`},
		{task.EnvFrom{File: "/no/such/file"}, "env_from[0]: file /no/such/file: does not exist"},
		{task.EnvFrom{File: bad}, "env_from[0]: file " + bad + ": line 2: contains no ="},
		{task.EnvFrom{File: n.dir}, "is not a regular file"},
		{task.EnvFrom{File: "/dev/zero"}, "is not a regular file"},
		{task.EnvFrom{File: "/proc/self/environ"}, "line 1"},
	} {
		id := fmt.Sprint("r", i)
		n.assign(id, "touch @ran", func(a *task.Assigned) { a.Action.Process.EnvFrom = []task.EnvFrom{c.from} })

		r := n.endedAs(id, task.Failed)
		if r.Reason != task.ReasonSecret || !strings.Contains(r.Message, c.want) || strings.Contains(r.Message, canary) {
			t.Errorf("%+v: %s, %s; want %s", c.from, r.Reason, r.Message, c.want)
		}
	}

	if _, err := os.Stat(n.dir + "/ran"); err == nil {
		t.Error("something ran")
	}
}

// TestEnvFrom_AsksAgainWhileEtcdIsAway tests that the read is repeated while etcd is unavailable, and that a
// cancel stops it.
func TestEnvFrom_AsksAgainWhileEtcdIsAway(t *testing.T) {
	t.Parallel()
	var asked, away atomic.Int64
	away.Store(1)
	n := newNode(t, newEtcd(t), func(c *Config) {
		c.Secrets = func(context.Context, string, string) (map[string]string, error) {
			if asked.Add(1); away.Load() != 0 {
				return nil, fmt.Errorf("%w: away", task.ErrUnavailable)
			}
			return map[string]string{"A": "1"}, nil
		}
	})

	n.join()
	db := func(a *task.Assigned) { a.Action.Process.EnvFrom = []task.EnvFrom{{Secret: "db"}} }
	n.assign("r1", "exit 0", db)
	executortest.Eventually(t, "it asks", func() bool { return asked.Load() > 0 })
	n.change("r1", cancelled)
	n.endedAs("r1", task.Cancelled)
	n.assign("r2", `test "$A" = 1`, db)
	before := asked.Load()
	executortest.Eventually(t, "it asks again", func() bool { return asked.Load() > before })
	away.Store(0)
	n.endedAs("r2", task.Succeeded)
}

// endedAs waits for the end of a run and checks its state.
func (n *node) endedAs(run string, want task.State) task.Run {
	n.t.Helper()
	r := n.ended(run)
	if r.State != want {
		n.t.Errorf("%s is %s (%s: %s), not %s", run, r.State, r.Reason, r.Message, want)
	}

	return r
}

func withSecrets(values map[string]string, faults map[string]error) func(*Config) {
	return func(c *Config) {
		c.Secrets = func(_ context.Context, namespace, name string) (map[string]string, error) {
			if namespace != "default" {
				return nil, errors.New("another namespace")
			}
			return values, faults[name]
		}
	}
}
