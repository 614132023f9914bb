// Package guardiantest has test binaries be guardians, and tests listen to what a daemon says to its guardian.
package guardiantest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/guardian"
)

// roleVariable in the environment of a test binary has it be a guardian.
const roleVariable = "CARILLON_TEST_GUARDIAN"

// Main is for the beginning of TestMain: if this process was started by the command of Config, it is a
// guardian, and Main does not return. What the daemon says is kept in a file (see heardFile). A cleared instance is told by a
// file in the data directory.
func Main() {
	dir := os.Getenv(roleVariable)
	if dir == "" {
		return
	}

	heard, err := os.OpenFile(heardFile(dir), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		err = guardian.Serve(context.Background(), io.TeeReader(os.Stdin, heard), os.Stdout, nil, func(_ context.Context, h guardian.Hello) error {
			return os.WriteFile(filepath.Join(h.Dir, "cleared."+h.Instance), h.Etcd, 0o600)
		})
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, "guardian:", err)
		os.Exit(1)
	}

	os.Exit(0)
}

// Config has the test binary be the guardian of a data directory.
func Config(dir string) guardian.Config {
	return guardian.Config{
		Hello:   guardian.Hello{Instance: "i1", Dir: dir, Workdirs: filepath.Join(dir, "rooms"), Etcd: json.RawMessage(`{"endpoints":["x"]}`)},
		Command: []string{os.Args[0]}, Env: append(os.Environ(), roleVariable+"="+dir),
	}
}

func heardFile(dir string) string { return filepath.Join(dir, "guardian.heard") }

// Heard is all that the guardians of a data directory have been told so far. An empty message stands for
// the hello to each.
func Heard(t testing.TB, dir string) (all []guardian.Message) {
	t.Helper()
	f, err := os.Open(heardFile(dir))
	executortest.Must(t, err)
	defer f.Close()

	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return all // the last line may be being written
		}

		var x guardian.Message
		executortest.Must(t, json.Unmarshal(line, &x))
		all = append(all, x)
	}
}

// Ear is the guardian's end of the daemon's words.
type Ear struct {
	t     testing.TB
	lines *bufio.Reader
	pipe  *os.File
}

// Listen has the test be the guardian.
func Listen(t testing.TB, g *guardian.Client) *Ear {
	t.Helper()
	r, w, err := os.Pipe()
	executortest.Must(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	executortest.Must(t, g.Attach(w))

	return &Ear{t: t, lines: bufio.NewReader(r), pipe: r}
}

// Close is the death of the guardian.
func (e *Ear) Close() { e.pipe.Close() }

// Hear returns when the daemon has said what is waited for.
func (e *Ear) Hear(what string, is func(guardian.Message) bool) (x guardian.Message) {
	e.t.Helper()
	executortest.Must(e.t, e.pipe.SetReadDeadline(time.Now().Add(executortest.Patience)))

	for {
		x = guardian.Message{}
		line, err := e.lines.ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &x)
		}

		if err != nil {
			e.t.Errorf("the guardian is not told %s: %v", what, err)
			return guardian.Message{Attempt: &guardian.Attempt{}}
		}

		if is(x) {
			return x
		}
	}
}
