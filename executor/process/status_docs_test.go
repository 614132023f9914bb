package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// The examples in docs/how-to/status-file.md have the described effect.
func TestTalk_ExamplesOfTheManual(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/how-to/status-file.md")
	executortest.Must(t, err)
	program := func(language, file string) string {
		_, rest, ok := strings.Cut(string(page), "```"+language+"\n")
		text, _, closed := strings.Cut(rest, "```")
		if !ok || !closed {
			t.Fatalf("no example in %s", language)
		}

		path := filepath.Join(t.TempDir(), file)
		executortest.Must(t, os.WriteFile(path, []byte(text), 0o600))

		return path
	}

	commands := map[string][]string{"sh": {"/bin/sh", program("sh", "report.sh")}}
	binary := filepath.Join(t.TempDir(), "report")
	if out, err := exec.Command("go", "build", "-o", binary, program("go", "report.go")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	commands["go"] = []string{binary}
	if python, err := exec.LookPath("python3"); err == nil {
		commands["python"] = []string{python, program("python", "report.py")}
	} else {
		t.Log("there is no Python to run its example")
	}

	l := newLauncher(t, spool.Config{})

	for language, argv := range commands {
		for checkpoint, steps := range map[string]string{"": "10", "7": "3"} {
			r := l.attempt(t, both(command(argv...), func(a *task.Assigned) { alone(a); a.Checkpoint = checkpoint }))
			if r.State != task.Succeeded || r.Status.Results["steps"] != steps || r.Status.Checkpoint != "10" || r.Status.BadLines != 0 ||
				r.Status.Progress == nil || *r.Status.Progress.Percent != 100 || r.Status.Progress.Text != "step 10" {
				t.Errorf("%s, from %q: %s %s, %+v: %s", language, checkpoint, r.State, r.Message, r.Status, r.Tail)
			}
		}
	}
}
