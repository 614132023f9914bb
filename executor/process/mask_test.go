package process

import (
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// secretValue is a value with characters that encoders escape.
const secretValue = `s3cr3t/Valué "0123456789"`

// printing returns the change that makes a process run a line of the shell with a secret in its environment.
func printing(line string, more ...func(*task.Assigned)) func(*task.Assigned) {
	return func(a *task.Assigned) {
		a.Action.Process.Shell = line
		a.Action.Process.EnvFrom = []task.EnvFrom{{Secret: "db", Keys: map[string]string{"password": "pass"}}}
		for _, change := range more {
			change(a)
		}
	}
}

// What a process prints, and what is recorded of it, contains no values of its secrets.
func TestOutput_MasksSecrets(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, spool.Config{}).withSecrets(t, map[string]map[string]string{"db": {"password": secretValue, "input": "open sesame\n", "other": "not used"}})
	apart := func(a *task.Assigned) { a.Output.Streams = task.StreamsApart }

	for _, c := range []struct {
		name, line, want string
		change           func(*task.Assigned)
	}{
		{"printed whole", `echo "v=$pass."`, "v=***.\n", nil},
		{"at the end, without a line break", `printf %s "$pass"`, "***", nil},
		{"in two parts", `printf %s "${pass%?????????}"; sleep 0.05; echo "${pass#?????????????????}"`, "***\n", nil},
		{"almost", `printf %s "${pass%?}"; echo x`, secretValue[:len(secretValue)-1] + "x\n", nil},
		{"escaped for a URL", `echo "` + url.QueryEscape(secretValue) + `"`, "***\n", nil},
		{"from the input", `cat`, "***", func(a *task.Assigned) { a.Action.Process.Stdin = &task.Stdin{Secret: "db/input"} }},
		{"a value that the task does not name", `echo not used`, "not used\n", nil},
		{"on the standard error", `echo "$pass" >&2`, "***\n", apart},
		{"with masking off", `echo "$pass"`, secretValue + "\n", func(a *task.Assigned) { a.Output.Mask = new(bool) }},
	} {
		run := ""
		change := printing(c.line, func(a *task.Assigned) {
			run = a.ID
			if c.change != nil {
				c.change(a)
			}
		})

		r := l.runWhole(t, change)
		if kept := executortest.ReadOutput(t, l.spool, run); r.State != task.Succeeded || kept != c.want || string(r.Tail) != c.want || r.OutputBytes != int64(len(c.want)) {
			t.Errorf("%s: %s (%s), kept %q, tail %q, %d bytes; want %q", c.name, r.State, r.Message, kept, r.Tail, r.OutputBytes, c.want)
		}
	}
}

// Patterns match what the process has printed. What is recorded of that is masked.
func TestOutput_MasksWhatIsReported(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, spool.Config{}).withSecrets(t, map[string]map[string]string{"db": {"password": secretValue}})

	r := l.runWhole(t, printing(`echo "login with $pass failed"`, func(a *task.Assigned) { a.Success.NotOutput = "s3cr3t.*failed" }))
	if r.State != task.Failed || !strings.Contains(r.Message, "login with *** failed") {
		t.Errorf("%s: %q", r.State, r.Message)
	}

	// The message quotes the beginning of the line. A value that is cut there would not be found any more.
	r = l.runWhole(t, printing(`printf '%085d%s\n' 0 "$pass"`, func(a *task.Assigned) { a.Success.NotOutput = "^0+s3cr3t" }))
	if r.State != task.Failed || !strings.HasSuffix(r.Message, "000***") {
		t.Errorf("%s: %q", r.State, r.Message)
	}

	r = l.runWhole(t, printing(`printf '50%% with %s\nurl=db://u:%s@h\ncheckpoint %s\n' "$pass" "$pass" "$pass" >>"$CARILLON_STATUS_FILE"`))
	if r.State != task.Succeeded || r.Status.Results["url"] != "db://u:***@h" || r.Status.Checkpoint != secretValue {
		t.Errorf("%s (%s): %+v", r.State, r.Message, r.Status)
	}
}

// A follower of the output sees a line when it is printed.
func TestOutput_MaskingHoldsUpNoLine(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, spool.Config{}).withSecrets(t, map[string]map[string]string{"db": {"password": secretValue}})
	release := filepath.Join(t.TempDir(), "release")
	run := make(chan string, 1)
	done := make(chan Result, 1)
	go func() {
		done <- l.runWhole(t, printing(`echo "v=$pass"; echo ready; while [ ! -e `+release+` ]; do sleep 0.02; done`, func(a *task.Assigned) { run <- a.ID }))
	}()

	id, text := <-run, ""
	for deadline := time.Now().Add(30 * time.Second); text != "v=***\nready\n" && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		f, err := l.spool.Open("default", "job", id, 1)
		if err != nil {
			continue
		}
		b, _ := io.ReadAll(f)
		f.Close()
		text = string(b)
	}

	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.State != task.Succeeded || text != "v=***\nready\n" {
		t.Errorf("while it ran, its output was %q; then it %s", text, r.State)
	}
}

// Output beyond the limit is discarded without being read. What is kept of its end does not begin in a value.
func TestOutput_MasksTheEndOfAFlood(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, spool.Config{Limit: 4 << 10}).withSecrets(t, map[string]map[string]string{"db": {"password": secretValue}})

	for _, streams := range []string{task.StreamsMerged, task.StreamsApart} {
		r := l.runWhole(t, printing(`yes "$pass" | head -c 20000000; echo; echo end`, func(a *task.Assigned) { a.Output.Streams = streams }))
		tail := string(r.Tail)
		for i := range len(secretValue) - 4 {
			// The last value was cut by the process itself, and is not a secret any more.
			if part := secretValue[i : i+5]; strings.Contains(tail[:max(0, len(tail)-len(secretValue)-8)], part) {
				t.Errorf("%s: the end of the output contains %q: %q", streams, part, tail)
			}
		}
		if r.State != task.Succeeded || !r.Truncated || !strings.HasSuffix(tail, "end\n") || !strings.Contains(tail, "***\n***\n") {
			t.Errorf("%s: %s, truncated %t, %q", streams, r.State, r.Truncated, tail)
		}
	}
}

// The end of a flood is kept, also if the values are so long that more could belong to one than the record has room for.
func TestOutput_KeepsTheEndOfAFloodWithALongSecret(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long/secret ", 150)
	l := newLauncher(t, spool.Config{Limit: 4 << 10}).withSecrets(t, map[string]map[string]string{"db": {"password": long}})

	r := l.runWhole(t, printing(`yes "$pass" | head -c 20000000; echo; echo end`))
	if tail := string(r.Tail); r.State != task.Succeeded || !r.Truncated || !strings.HasSuffix(tail, "end\n") || !strings.Contains(tail, "***\n***\n") {
		t.Errorf("%s, truncated %t, %q", r.State, r.Truncated, tail)
	}
}
