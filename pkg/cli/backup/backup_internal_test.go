package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/internal/backup/restore"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestExplain_GivesEachErrorItsExitCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		exit int
		code string
	}{
		{backup.ErrDamaged, failure.ExitFinding, codeDamaged},
		{task.ErrNotFound, failure.ExitNotFound, client.CodeNotFound},
		{fs.ErrNotExist, failure.ExitNotFound, client.CodeNotFound},
		{task.ErrExists, failure.ExitConflict, client.CodeExists},
		{task.ErrConflict, failure.ExitConflict, client.CodeConflict},
		{task.ErrUnavailable, failure.ExitUnavailable, client.CodeUnavailable},
		{backup.ErrNoDisk, failure.ExitFailure, client.CodeNoDisk},
		{errors.New("else"), failure.ExitFailure, failure.CodeFailure},
	} {
		err := explain(fmt.Errorf("open x: %w", c.err))
		var e *failure.Error
		if !errors.As(err, &e) || e.Exit != c.exit || e.Code != c.code || e.Message != "open x: "+c.err.Error() {
			t.Errorf("%v: %+v", c.err, err)
		}
	}

	// The code of these is known elsewhere.
	for _, err := range []error{nil, &client.Error{Code: client.CodeForbidden}, failure.Usage("x"), context.Canceled, task.Invalid(task.CodeBadValue, "x", "y")} {
		if got := explain(err); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
}

// show returns what print prints on a page.
func show(t *testing.T, print func(*output.Details)) string {
	t.Helper()
	d := factorytest.New("")
	if err := output.EmitOne(&d.Printer, struct{}{}, "", print); err != nil {
		t.Fatal(err)
	}
	if what := factorytest.Obeyed(d.Out.String()); what != "" {
		t.Errorf("%q is shown", what)
	}

	// The columns depend on the longest name.
	lines := strings.Split(strings.TrimSpace(d.Out.String()), "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}

	return strings.Join(lines, "\n")
}

func TestShowPlan(t *testing.T) {
	at := func(hour int) task.Time { return task.At(time.Date(2026, 11, 28, hour, 0, 0, 0, time.UTC)) }
	p := &restore.Plan{BackupTime: at(2), Until: at(9), At: at(10), SHA256: "abc", Epoch: 3, Revision: 482110, Tasks: 912,
		Gap: restore.Ticks{Ticks: 48210, Tasks: 912}, Late: restore.Ticks{Ticks: 7, Tasks: 2}, ByPolicy: map[string]int64{"skip": 1, "last": 1},
		LastSign: &restore.Sign{Node: "n2", At: at(8), From: "state.json"}, OneShots: restore.Names{Count: 3, First: []string{"default/a", "default/b\x1b[2J"}},
		Attempts: 1, Waiting: 2, Parents: 1, Freezes: []task.Freeze{{Namespace: "web", Since: at(1), Reason: "move\nnow"}},
		Admins: []string{"user:ann"}, AdminTokens: []string{"e6qm of user:ann"}, MissingKeys: []string{"k3fq"}, Dropped: []string{"other keys: 4"},
		Audit: &restore.AuditReview{File: "/var/log/audit", From: at(3)}}
	for n := range maxRevoked + 2 {
		p.Audit.Revoked = append(p.Audit.Revoked, restore.Revoked{Kind: "token", Name: fmt.Sprint("t", n), Change: "deleted", At: at(5), By: "user:bob"})
	}

	text := show(t, func(d *output.Details) { showPlan(d, p, []string{"k1"}) })
	for _, want := range []string{
		"Lost 48210 ticks of 912 tasks until 2026-11-28T09:00:00Z will not run", "Last sign of life n2, 2026-11-28T08:00:00Z (state.json)",
		"Backup 2026-11-28T02:00:00Z: 912 tasks, epoch 3, revision 482110", "SHA-256 abc; no audit file of this host has it",
		"Late 7 ticks of 2 tasks until now, which the missed policy decides; last: 1 task; skip: 1 task",
		"In the backup 1 attempt, 2 waiting runs, 1 run with parts, 0 triggers: they end as lost or missed", `Never run default/a, default/b`, "and 1 more\n",
		"Frozen namespace web, since 2026-11-28T01:00:00Z: move", "Admins user:ann\nToken of an admin e6qm of user:ann",
		"Valid again token t0: deleted on ", "and 2 more, which -o json lists", "Audit file /var/log/audit begins on 2026-11-28T03:00:00Z",
		"Secret keys this host has 1 keys, but not k3fq", "Deleted other keys: 4",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the plan lacks %q", want)
		}
	}
	if n := strings.Count(text, "Valid again"); n != maxRevoked {
		t.Errorf("%d revoked records are shown, want %d", n, maxRevoked)
	}
	if t.Failed() {
		t.Log(text)
	}

	// A move loses nothing. Without an audit file, nothing is said about one.
	p.KeepsRuns, p.Audit = true, nil
	text = show(t, func(d *output.Details) { showPlan(d, p, nil) })
	if !strings.Contains(text, "Lost nothing: ") || !strings.Contains(text, "they go on") || strings.Contains(text, "Audit file") {
		t.Errorf("of a move:\n%s", text)
	}
}

// After the agent was started, the commands of the undo would take back what the member has acknowledged.
func TestShowInstalled(t *testing.T) {
	i := installed{Etcd: "/d/etcd", Former: "/d/etcd.before-x", Epoch: 7, Undo: []string{"mv a b", "mv c d"}}
	for _, c := range []struct {
		already, started bool
		members          int
		want             string
	}{
		{false, false, 3, "Undo mv a b; mv c d (only before the agent is started)\nNext install it on the other members"},
		{true, false, 0, "it had them before, and nothing was changed\nFormer data /d/etcd.before-x\nUndo mv a b"},
		{true, true, 1, "Undo impossible: the agent has been started since"},
	} {
		i.Already, i.Started = c.already, c.started
		if text := show(t, func(d *output.Details) { showInstalled(d, i, c.members) }); !strings.Contains(text, c.want) || !strings.Contains(text, "of epoch 7") {
			t.Errorf("%+v:\n%s", c, text)
		}
	}
}

func TestIsBelow(t *testing.T) {
	for path, want := range map[string]bool{"/tmp": true, "/tmp/a/b": true, "/tmpfs": false, "/var/tmp": false, "/": false} {
		if got := isBelow(path, "/tmp"); got != want {
			t.Errorf("%s: %t", path, got)
		}
	}
}

// Temporary files go to TMPDIR, but never by default to /tmp, which may be in memory.
func TestPlace_Directory(t *testing.T) {
	for _, c := range []struct{ work, tmpdir, want string }{{"", "", "/var/tmp"}, {"", "/scratch", "/scratch"}, {"/w", "/scratch", "/w"}} {
		f := factorytest.New("").Factory
		f.Env = func(string) string { return c.tmpdir }
		if got := (&place{work: c.work}).directory(f); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestDescribe(t *testing.T) {
	m := &backup.Manifest{Epoch: 2, Revision: 100, RaftTerm: 6, PackedSize: 3 << 20, Counts: map[string]int64{"tasks": 1}, Keys: []string{"k1", "k2"}}
	if got, want := describe(m), "1 task, epoch 2, raft term 6, revision 100, 3.0 MiB"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := notIncluded(m); !strings.Contains(got, "the keys of secrets (k1, k2), ") {
		t.Error(got)
	}
}
