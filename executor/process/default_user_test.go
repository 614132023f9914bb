package process

import (
	"os"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// whoAmI prints what depends on the user of a process.
const whoAmI = `echo "$(id -u):$(id -g):$(id -G) $LOGNAME $HOME $(stat -c %U "${CARILLON_STATUS_FILE%/*}")"`

func TestDefaultUser_IsThatOfTasksThatNameNone(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can run processes as another user")
	}

	l := newLauncher(t, spool.Config{Dir: openTemp(t)})
	without, err := newDefaultAccount("nobody")
	executortest.Must(t, err)
	l.without = without

	as := func(user string) string {
		t.Helper()
		r := l.attempt(t, both(alone, both(shell(whoAmI), func(a *task.Assigned) { a.Action.Process.User = user })))
		if r.State != task.Succeeded {
			t.Fatalf("as %q: %s", user, r.Message)
		}

		return strings.TrimSpace(string(r.Tail))
	}

	named := as("nobody")
	if got := as(""); got != named || strings.HasPrefix(got, "0:") {
		t.Errorf("without a user it runs as %q; as nobody it would as %q", got, named)
	}
	if got := as("root"); !strings.HasPrefix(got, "0:0:") {
		t.Errorf("as root it runs as %q", got)
	}

	// The groups that a task names are added to the default user's.
	r := l.attempt(t, both(alone, both(shell("id -u; id -g"), func(a *task.Assigned) { a.Action.Process.Group = "daemon" })))
	if got := strings.Fields(string(r.Tail)); len(got) != 2 || got[0] != strings.Split(named, ":")[0] || got[1] != "1" {
		t.Errorf("with a group of its own it runs as %v: %s", got, r.Message)
	}

	asks, err := l.policyAttempt(task.Assigned{Action: task.Action{Process: &task.Process{Command: []string{"true"}}}})
	if err != nil || asks.User != "nobody" || asks.UID == 0 {
		t.Errorf("a policy judges it as user %s (%d), %v", asks.User, asks.UID, err)
	}
}

func TestDefaultUser_OfTheDaemonChangesNothing(t *testing.T) {
	t.Parallel()

	without, err := newDefaultAccount(ownAccount().name)
	if err != nil {
		t.Skip(err) // the user database has no entry for it
	}

	as, err := accountFor(&task.Process{}, without)
	if err != nil || as != ownAccount() {
		t.Errorf("%+v, %v; want %+v", as, err, ownAccount())
	}
}

func TestCheckDefaultUser(t *testing.T) {
	t.Parallel()

	if err := CheckDefaultUser(""); err != nil {
		t.Errorf("the daemon's own: %v", err)
	}
	if err := CheckDefaultUser("no-such-user"); err == nil || !strings.Contains(err.Error(), `"no-such-user" does not exist`) {
		t.Errorf("an unknown user: %v", err)
	}
}
