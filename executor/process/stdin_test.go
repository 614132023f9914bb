package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
)

// runWhole runs an attempt as the executor does, from its policy to its end.
func (ru *Runner) runWhole(t testing.TB, change func(*task.Assigned)) Result {
	t.Helper()
	a := executortest.Assigned(fmt.Sprint("w", runs.Add(1)), &task.Process{})
	change(&a)

	return ru.RunAttempt(Attempt{
		Assigned: a, Token: executortest.NewToken(), MayStart: func() error { return nil },
		OnStarted: func(time.Time) {}, OnCheckpoint: func(string) {}, OnPause: func(PauseState) {},
	}, NewOrders())
}

// withSecrets gives the runner secrets of the namespace of its attempts.
func (ru *Runner) withSecrets(t testing.TB, secrets map[string]map[string]string) *Runner {
	t.Helper()
	ru.secrets = func(_ context.Context, _, name string) (map[string]string, error) {
		if values, ok := secrets[name]; ok {
			return values, nil
		}
		return nil, task.ErrNotFound
	}
	ru.secretReader = newSecretReader()

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); ru.secretReader.serveRequests(ctx, ru.secrets) }()
	t.Cleanup(func() { cancel(); <-done })

	return ru
}

// input returns the change that gives a process its standard input.
func input(in task.Stdin) func(*task.Assigned) {
	return func(a *task.Assigned) { a.Action.Process.Stdin = &in }
}

func TestStdin_IsWhatTheTaskSays(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789abcdef", 4096)
	l := newLauncher(t, spool.Config{}).withSecrets(t, map[string]map[string]string{"db": {"password": "sesame", "empty": "", "long": long}})
	dir := t.TempDir()
	file, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "fifo")
	executortest.WriteFile(t, file, "from a file", 0o600)
	executortest.Must(t, unix.Mkfifo(fifo, 0o600))

	for name, c := range map[string]struct {
		line  string
		stdin task.Stdin
		want  string // the output
		fails string // the message of an attempt that does not start
		as    string // its reason
	}{
		"text":                   {line: "cat", stdin: task.Stdin{Text: "a\x00b\nc"}, want: "a\x00b\nc"},
		"a secret":               {line: "tr a-z A-Z", stdin: task.Stdin{Secret: "db/password"}, want: "SESAME"}, // the mask does not find it
		"an empty secret":        {line: "cat", stdin: task.Stdin{Secret: "db/empty"}},
		"the longest secret":     {line: "wc -c", stdin: task.Stdin{Secret: "db/long"}, want: "65536\n"},
		"a file":                 {line: "cat", stdin: task.Stdin{File: file}, want: "from a file"},
		"opened again":           {line: "cat /dev/stdin", stdin: task.Stdin{Text: "again"}, want: "again"},
		"read in parts":          {line: "read a; read b; echo $b$a", stdin: task.Stdin{Text: "1\n2\n"}, want: "21\n"},
		"not read":               {line: "exit 0", stdin: task.Stdin{Text: strings.Repeat("x", task.MaxStdinText)}},
		"cannot be changed":      {line: `(echo x >/proc/self/fd/0) 2>/dev/null || cat`, stdin: task.Stdin{Text: "same"}, want: "same"},
		"another key":            {stdin: task.Stdin{Secret: "db/user"}, fails: `stdin: secret db does not contain "user"`, as: task.ReasonSecret},
		"another secret":         {stdin: task.Stdin{Secret: "dc/user"}, fails: "stdin: secret dc does not exist in namespace", as: task.ReasonSecret},
		"no file":                {stdin: task.Stdin{File: file + "2"}, fails: "stdin: file " + file + "2: no such file or directory", as: task.ReasonStart},
		"a directory":            {stdin: task.Stdin{File: dir}, fails: "is not a regular file", as: task.ReasonStart},
		"a FIFO":                 {stdin: task.Stdin{File: fifo}, fails: "is not a regular file", as: task.ReasonStart},
		"a device":               {stdin: task.Stdin{File: "/dev/zero"}, fails: "is not a regular file", as: task.ReasonStart},
		"a file of /proc":        {stdin: task.Stdin{File: "/proc/self/status"}, fails: "is a file of /proc", as: task.ReasonStart},
		"a file of the daemon":   {stdin: task.Stdin{File: "/proc/self/exe"}, fails: "stdin: file /proc/self/exe: ", as: task.ReasonStart},
		"the daemon's own input": {stdin: task.Stdin{File: "/dev/stdin"}, fails: "stdin: file /dev/stdin: ", as: task.ReasonStart},
	} {
		r := l.runWhole(t, both(shell(c.line), input(c.stdin)))
		switch {
		case c.fails == "" && (r.State != task.Succeeded || string(r.Tail) != c.want):
			t.Errorf("%s: %s (%s), %q; want %q", name, r.State, r.Message, r.Tail, c.want)
		case c.fails != "" && (r.State != task.Failed || r.Reason != c.as || !strings.Contains(r.Message, c.fails)):
			t.Errorf("%s: %s %s %q; want %s, %q", name, r.State, r.Reason, r.Message, c.as, c.fails)
		case strings.Contains(r.Message, "sesame"):
			t.Errorf("%s: the message contains a value: %s", name, r.Message)
		}
	}
}

// A process has descriptors 0, 1 and 2, and no other: neither the runner's copy of its input, nor that of another attempt.
func TestStdin_IsTheOnlyDescriptorThatIsInherited(t *testing.T) {
	l := newLauncher(t, spool.Config{}).withSecrets(t, map[string]map[string]string{"db": {"password": "sesame"}})
	waits := make(chan Result, 1)
	ready := filepath.Join(t.TempDir(), "ready")
	executortest.Must(t, unix.Mkfifo(ready, 0o600))

	// An attempt with an input of its own is running meanwhile.
	go func() {
		waits <- l.runWhole(t, both(shell("read x <"+ready+"; cat"), input(task.Stdin{Text: "the other's"})))
	}()

	for _, in := range []task.Stdin{{Text: "text"}, {Secret: "db/password"}, {File: "/etc/passwd"}} {
		r := l.runWhole(t, both(command("/bin/ls", "/proc/self/fd"), input(in)))
		// ls itself opens one more, for the directory.
		if r.State != task.Succeeded || string(r.Tail) != "0\n1\n2\n3\n" {
			t.Errorf("%s: %s, descriptors %q", in.Source(), r.State, r.Tail)
		}
	}

	if err := os.WriteFile(ready, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := <-waits; string(r.Tail) != "the other's" {
		t.Errorf("the other attempt: %+v", r)
	}

	// Nothing of the inputs is left open, also if the program does not start.
	before := openFiles(t)
	for range 10 {
		l.runWhole(t, both(command("/no/such"), input(task.Stdin{Text: "x"})))
		l.runWhole(t, both(shell("exit 0"), input(task.Stdin{Secret: "db/password"})))
		l.runWhole(t, both(shell("exit 0"), input(task.Stdin{File: "/etc/passwd"})))
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d open files before, %d after", before, after)
	}
}

func TestStdin_FilesAreOpenedAsTheUserOfTheAttempt(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("there is only one user")
	}

	l := newLauncher(t, spool.Config{})
	dir := openTemp(t)
	roots, open := filepath.Join(dir, "roots"), filepath.Join(dir, "open")
	executortest.WriteFile(t, roots, "of root", 0o600)
	executortest.WriteFile(t, open, "of all", 0o644)
	asNobody := func(a *task.Assigned) { a.Action.Process.User = "nobody" }

	if r := l.runWhole(t, both(both(shell("cat"), asNobody), input(task.Stdin{File: open}))); string(r.Tail) != "of all" {
		t.Errorf("%+v", r)
	}
	if r := l.runWhole(t, both(both(shell("cat"), asNobody), input(task.Stdin{File: roots}))); r.State != task.Failed || !strings.Contains(r.Message, "permission denied") {
		t.Errorf("a file of root: %+v", r)
	}
	// The user can open its own input again.
	if r := l.runWhole(t, both(both(shell("cat /dev/stdin"), asNobody), input(task.Stdin{Text: "text"}))); string(r.Tail) != "text" {
		t.Errorf("/dev/stdin: %+v", r)
	}
	// The daemon's open files are out of reach.
	f, err := os.Open(roots)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	path := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if err := os.Chmod(roots, 0o644); err != nil { // only its directory, and the descriptor, hide it
		t.Fatal(err)
	}
	if r := l.runWhole(t, both(both(shell("cat"), asNobody), input(task.Stdin{File: path}))); r.State != task.Failed {
		t.Errorf("%s: %+v", path, r)
	}
}

func TestStdin_IsJudgedByThePolicy(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, spool.Config{}).withSecrets(t, map[string]map[string]string{"db": {"password": "sesame"}})
	no := false
	l.policy = func() (*policy.Policy, error) {
		return &policy.Policy{EnvFiles: []string{"/etc/jobs/"}, Secrets: &no}, nil
	}

	for rule, in := range map[string]task.Stdin{"env_files": {File: "/etc/passwd"}, "secrets": {Secret: "db/password"}} {
		r := l.runWhole(t, both(shell("cat"), input(in)))
		if r.State != task.Failed || r.Reason != task.ReasonPolicy || !strings.Contains(r.Message, rule+": stdin: ") {
			t.Errorf("%s: %+v", rule, r)
		}
	}
	if r := l.runWhole(t, both(shell("cat"), input(task.Stdin{Text: "text"}))); r.State != task.Succeeded {
		t.Errorf("text: %+v", r)
	}
}

func TestArguments_AreNeverText(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, spool.Config{})
	args := []string{"$(touch pwned)", `a "b' c`, "", "; exit 3", "--"}
	given := func(a *task.Assigned) { a.Args = args }
	want := strings.Join(args, "|") + "|"

	for name, change := range map[string]func(*task.Assigned){
		"command": command("/usr/bin/printf", "%s|"),
		"shell":   shell(`printf '%s|' "$@"`),
	} {
		if r := l.runWhole(t, both(change, given)); r.State != task.Succeeded || string(r.Tail) != want {
			t.Errorf("%s: %s (%s), %q; want %q", name, r.State, r.Message, r.Tail, want)
		}
	}

	if r := l.runWhole(t, both(shell(`echo "$0 $#"`), given)); string(r.Tail) != "/bin/sh 5\n" {
		t.Errorf("$0 and $# with arguments: %q", r.Tail)
	}
	if r := l.runWhole(t, shell(`echo "$0 $#"`)); string(r.Tail) != "/bin/sh 0\n" {
		t.Errorf("$0 and $# without arguments: %q", r.Tail)
	}
}
