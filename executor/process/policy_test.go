package process

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
)

const canary = "canary-4bd1"

// TestPolicy_IsAskedAgainDirectlyBeforeTheFork tests that the policy judges the attempt again before the fork,
// because the policy and symbolic links may have changed since the attempt was prepared.
func TestPolicy_IsAskedAgainDirectlyBeforeTheFork(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, spool.Config{})
	dir := t.TempDir()
	good, bad, link := filepath.Join(dir, "good"), filepath.Join(dir, "bad"), filepath.Join(dir, "link")
	executortest.WriteProgram(t, good, "#!/bin/sh\nexit 0")
	executortest.WriteProgram(t, bad, "#!/bin/sh\ntouch "+dir+"/ran")
	var p *policy.Policy
	l.policy = func() (*policy.Policy, error) { return p, nil }
	for what, meanwhile := range map[string]func(){
		"another policy": func() { p = &policy.Policy{Executables: []string{bad}} },
		"another demand": func() {
			p = &policy.Policy{Executables: []string{good}, Require: policy.Require{NoNewPrivs: true}}
		},
		"another limit": func() {
			p = &policy.Policy{Executables: []string{good}, Limits: policy.Limits{Timeout: task.Duration(time.Hour)}}
		},
	} {
		p = &policy.Policy{Executables: []string{good}}
		_ = os.Remove(link)

		if err := os.Symlink(good, link); err != nil {
			t.Fatal(err)
		}

		run := func(change func()) Result {
			a := executortest.Assigned("r1", &task.Process{Command: []string{link}})
			judge, err := l.newPolicyJudge(a)
			if err != nil {
				t.Fatal(err)
			}

			w, err := l.prepareAttempt(a, executortest.NewToken())
			if err != nil {
				t.Fatal(err)
			}

			w.judge = judge
			w.mayStart = func() error { change(); return nil }

			return l.runPrepared(w, NewOrders())
		}

		if r := run(func() {}); r.State != task.Succeeded {
			t.Fatalf("%+v", r)
		}

		if r := run(meanwhile); r.State != task.Failed || r.Reason != task.ReasonPolicy || r.NotStarted {
			t.Errorf("%s: %+v", what, r)
		}

		// The program that was judged is executed, even if the link points elsewhere by then.
		p = &policy.Policy{Executables: []string{good}}

		if r := run(func() { _ = os.Remove(link); _ = os.Symlink(bad, link) }); r.State != task.Succeeded {
			t.Errorf("another link: %+v", r)
		}

		if _, err := os.Stat(dir + "/ran"); err == nil {
			t.Fatal("it ran")
		}
	}
}

// TestLaunch_ForgetsTheEnvironment tests that the environment is dropped after the start. It may contain secrets,
// and the attempt may run for days.
func TestLaunch_ForgetsTheEnvironment(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, spool.Config{})

	prep, err := l.prepareAttempt(executortest.Assigned("r1", &task.Process{Command: []string{"true"}, Env: map[string]string{"A": canary}}), executortest.NewToken())
	if err != nil {
		t.Fatal(err)
	}

	out := l.spool.NewOutput(prep.path, task.Output{})
	defer out.Close()

	o := NewOrders()

	p, err := l.startProcess(prep, out, o)
	if err != nil {
		t.Fatal(err)
	}

	p.dropEnvironment(&prep)

	if prep.env != nil || prep.process.Env != nil || prep.mayStart != nil || prep.judge != nil || p.spawnRequest.env != nil || p.spawnRequest.may != nil {
		t.Error("the prepared attempt still holds the environment")
	}

	if r := p.waitForMain(prep, o); r.State != task.Succeeded {
		t.Errorf("%+v", r)
	}
}

// A task that names a group may gain its rights, so the policy has to know which groups its user has.
func TestGroupsNamed(t *testing.T) {
	t.Parallel()
	own := defaultAccount{own: ownAccount()}
	if as, err := groupsNamed(&task.Process{}, own); len(as) != 0 || err != nil {
		t.Error(as, err)
	}

	if os.Geteuid() != 0 {
		return // no other groups can be named
	}

	nobody, err := accountOf("nobody")
	if err != nil {
		t.Fatal(err)
	}

	theirs := strconv.Itoa(int(nobody.credential.Gid))
	for _, c := range []struct {
		p    task.Process
		want []bool
	}{
		{task.Process{User: "nobody", Group: "root"}, []bool{false}}, {task.Process{User: "nobody", Groups: []string{theirs, "0"}}, []bool{true, false}}, {task.Process{Groups: []string{theirs}}, []bool{true}},
	} {
		list, err := groupsNamed(&c.p, own)
		var got []bool
		for _, g := range list {
			if got = append(got, g.Own); g.Name == theirs || g.Name == "0" {
				t.Errorf("%+v has no name", g)
			}
		}

		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%+v: %+v, %v", c.p, list, err)
		}
	}
}
