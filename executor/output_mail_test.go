package executor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/outputmail"
	"github.com/carillonhq/carillon/pkg/task"
)

// mailNode returns a node whose sendmail writes each mail into a file, and a function that returns the mails, by recipient.
func mailNode(t *testing.T) (*node, func() map[string]string) {
	t.Helper()
	dir := t.TempDir()
	script := filepath.Join(dir, "sendmail")
	text := "#!/bin/sh\nshift 2\ncat >" + dir + "/new.$$ && mv " + dir + "/new.$$ \"" + dir + "/$1\"\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}

	n := newNode(t, newEtcd(t), func(c *Config) { c.Mail = outputmail.Policy{Sendmail: script} })

	return n, func() map[string]string {
		mails := map[string]string{}
		list, _ := filepath.Glob(dir + "/*@*")
		for _, file := range list {
			b, _ := os.ReadFile(file)
			mails[filepath.Base(file)] = string(b)
		}
		return mails
	}
}

// mailed makes an attempt whose output goes to RUN@example.com, or to NAME.RUN@example.com.
func mailed(when string, more ...func(*task.Assigned)) func(*task.Assigned) {
	return func(a *task.Assigned) {
		a.Output.Mail, a.Output.MailWhen = []string{fmt.Sprintf("%s.%d@example.com", a.ID, a.Attempt)}, when
		for _, f := range more {
			f(a)
		}
	}
}

func retried(a *task.Assigned) {
	a.Retry = task.Retry{Attempts: 2, Backoff: task.Duration(time.Hour), Factor: 1, MaxBackoff: task.Duration(time.Hour), On: []task.State{task.Failed}}
}

// Only the end of a run's last attempt is mailed, whatever its state, and only what the task asks for.
func TestExecutor_MailsTheLastAttempt(t *testing.T) {
	n, mails := mailNode(t)
	n.join()
	n.assign("out", "echo out", mailed(""))
	n.assign("silent", "true", mailed(""))
	n.assign("fails", "echo no; exit 3", mailed(task.MailWhenFailure))
	n.assign("fails-silently", "exit 3", mailed(task.MailWhenFailure))
	n.assign("succeeds", "echo yes", mailed(task.MailWhenFailure))
	n.assign("unasked", "echo x")
	n.assign("retried", "echo first; exit 7", mailed("", retried))
	n.assign("last", "echo second; exit 7", mailed("", retried, func(a *task.Assigned) { a.Attempt = 2; a.Output.Mail = []string{"last.2@example.com"} }))
	n.assign(task.PartID("r", 0), "echo part 0", mailed("", func(a *task.Assigned) { a.PartCount = 2 }))
	n.assign(task.PartID("r", 1), "echo part 1", mailed("", func(a *task.Assigned) { a.PartCount = 2 }))
	n.assign("poor", "echo x; exit 7", mailed("", func(a *task.Assigned) { a.Action.Process.User = "no-such-user" }))

	for _, run := range []string{"out", "silent", "fails", "fails-silently", "succeeds", "unasked", "last", "poor"} {
		n.ended(run)
	}
	executortest.Eventually(t, "the next attempt waits", func() bool { return n.waits("retried") != nil })

	want := map[string]string{"out.1": "out\n", "fails.1": "no\n", "fails-silently.1": "[carillon: ", "last.2": "second\n", task.PartID("r", 0) + ".1": "part 0\n", task.PartID("r", 1) + ".1": "part 1\n"}
	executortest.Eventually(t, "all mails", func() bool { return len(mails()) >= len(want) })
	n.stop() // sends what waits

	got := mails()
	for name, body := range want {
		_, text, _ := strings.Cut(got[name+"@example.com"], "\n\n")
		if !strings.HasPrefix(text, body) {
			t.Errorf("%s: %q, want %q", name, text, body)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d mails, want %d: %v", len(got), len(want), got)
	}
}
