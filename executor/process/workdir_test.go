package process

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/executor/workdir"
	"github.com/carillonhq/carillon/pkg/task"
)

// alone gives an attempt a unique run id, because parallel tests may kill all processes with the usual one.
func alone(a *task.Assigned) { a.ID = "r" + task.NewUID() }

// Whatever a task leaves in its working directory is removed afterwards, and nothing outside is.
func TestRoom_IsEmptyAgain(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	precious := filepath.Join(outside, "precious")
	executortest.Must(t, os.WriteFile(precious, []byte("x"), 0o600))

	for name, leave := range map[string]string{
		"nothing":               "true",
		"status":                "echo 1 > status",
		"hidden files":          "echo 1 > status; touch .a ...; touch -- -rf",
		"names of any bytes":    `touch "$(printf 'a\nb\377')"`,
		"a link to a directory": "ln -s " + outside + " x; ln -s / root; ln -s . status",
		"a hard link":           "ln " + precious + " x || true",
		"fifos":                 "mkfifo status f",
		"many files":            "seq 2000 | xargs touch",
		"a wide tree":           "mkdir -p $(seq -s/x 60 | tr ' ' /)/{a,b} a/b/c && touch a/b/c/d",
		"a deep tree":           `mkdir -p $(printf 'd/%.0s' $(seq 500)) && touch $(printf 'd/%.0s' $(seq 500))f`,
		"deep, with our names":  `mkdir -p .deep-1/x .deep-2/x .deep-3 $(printf 'd/%.0s' $(seq 100))`,
		"forbidden directories": "mkdir -p a/b/c; touch a/b/c/f; chmod 0 a/b/c a/b a; chmod 0 .",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLauncher(t, spool.Config{})
			var at string

			r := l.attempt(t, both(alone, shell(`cd "${CARILLON_STATUS_FILE%/*}" || exit 9; pwd; test -z "$(ls -A)" || exit 8; `+leave)))
			if r.State != task.Succeeded || r.Message != "" {
				t.Fatalf("%s %s: %s", r.State, r.Message, r.Tail)
			}

			at, _, _ = strings.Cut(string(r.Tail), "\n")
			if left, err := os.ReadDir(at); len(left) > 0 || err != nil && !os.IsNotExist(err) {
				t.Errorf("left: %v %v", left, err)
			}

			if n := l.workdirs.Quarantined(); n > 0 {
				t.Errorf("%d rooms are set aside", n)
			}
		})
	}

	t.Cleanup(func() { // after the parallel subtests
		if _, err := os.Stat(precious); err != nil {
			t.Error("a file outside was removed")
		}
	})
}

func TestRoom_IsItsUsersOnly(t *testing.T) {
	t.Parallel()

	if os.Geteuid() != 0 {
		l := newLauncher(t, spool.Config{})
		if r := l.attempt(t, both(alone, shell(`test "$(stat -c %a "${CARILLON_STATUS_FILE%/*}")" = 700`))); r.State != task.Succeeded {
			t.Error(r.Message)
		}
		return
	}

	l := newLauncher(t, spool.Config{Dir: openTemp(t)})
	as := func(user, line string) Result {
		return l.attempt(t, both(alone, both(shell(line), func(a *task.Assigned) { a.Action.Process.User = user })))
	}

	r := as("nobody", `echo hello > $CARILLON_STATUS_FILE && echo "${CARILLON_STATUS_FILE%/*}"`)
	if r.State != task.Succeeded {
		t.Fatalf("%s: %s", r.Message, r.Tail)
	}

	if r := as("daemon", "ls "+strings.TrimSpace(string(r.Tail))); r.State == task.Succeeded {
		t.Errorf("another user sees the room: %s", r.Tail)
	}
}

// openTemp returns a directory that all users can enter, unlike t.TempDir, which is in a private directory.
func openTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "rooms")
	executortest.Must(t, err)
	executortest.Must(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() { os.RemoveAll(dir) })

	return dir
}

// If other users could write to the directory, attempts run without working directories.
func TestRooms_NotWhereOthersWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	executortest.Must(t, os.Chmod(dir, 0o777))

	r := workdir.NewPool(dir, filepath.Dir(dir), "i1", nil)
	if err := r.Open(); err == nil || !strings.Contains(err.Error(), "others cannot write to") {
		t.Error(err)
	}

	l := newLauncher(t, spool.Config{})
	l.workdirs = r
	if r := l.attempt(t, both(alone, shell(`test -z "$CARILLON_STATUS_FILE"`))); r.State != task.Succeeded {
		t.Error(r.Message)
	}

	scratch := func(a *task.Assigned) { a.Action.Process.Scratch = true }
	if r := l.attempt(t, both(alone, shell("true"), scratch)); r.Reason != task.ReasonHost || !strings.Contains(r.Message, "scratch: ") {
		t.Errorf("it needs a room: %+v", r)
	}
}

// The reports of an attempt are in the record of its end, however short it was, and whatever user it ran as.
func TestTalk_WithTheEnd(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, spool.Config{Dir: openTemp(t)})
	change := both(shell(`echo "was $CARILLON_CHECKPOINT"; test "$old" || echo "rows=7" >> $CARILLON_STATUS_FILE
		printf 'checkpoint b\nnonsense\n0.9 nearly\nlast=1' >> $CARILLON_STATUS_FILE; exit 3`), func(a *task.Assigned) {
		a.Checkpoint, a.Results = "a", map[string]string{"old": "1", "rows": "2"}
		if os.Geteuid() == 0 {
			a.Action.Process.User = "nobody"
		}
	})

	r := l.attempt(t, both(alone, change))
	if r.Status == nil || !maps.Equal(r.Status.Results, map[string]string{"old": "1", "rows": "7", "last": "1"}) ||
		r.Status.Checkpoint != "b" || r.Status.BadLines != 1 || string(r.Tail) != "was a\n" {
		t.Errorf("%+v, %s", r.Status, r.Tail)
	}

	if n := len(l.statuses.All()); n > 0 {
		t.Errorf("%d attempts are listened to", n)
	}
}
