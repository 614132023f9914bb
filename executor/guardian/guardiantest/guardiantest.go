// Package guardiantest lets test binaries run as guardians, and lets tests read the messages from a daemon to its
// guardian.
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

// roleVariable in the environment of a test binary makes it run as a guardian. Its value is the data directory.
const roleVariable = "CARILLON_TEST_GUARDIAN"

// Main belongs at the beginning of TestMain. If this process was started by the command of Config, it runs as a
// guardian and Main does not return. The messages from the daemon are appended to a file (see Heard). When the
// guardian reports an instance as cleared, it writes the file "cleared.<instance>" in the data directory.
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

// Config returns a configuration in which the test binary is the guardian of a data directory.
func Config(dir string) guardian.Config {
	return guardian.Config{
		Hello:   guardian.Hello{Instance: "i1", Dir: dir, Workdirs: filepath.Join(dir, "rooms"), Etcd: json.RawMessage(`{"endpoints":["x"]}`)},
		Command: []string{os.Args[0]}, Env: append(os.Environ(), roleVariable+"="+dir),
	}
}

// heardFile returns the file to which the guardians of a data directory copy their input.
func heardFile(dir string) string { return filepath.Join(dir, "guardian.heard") }

// Heard returns all messages that the guardians of a data directory have received so far. An empty message stands for
// the Hello to each of them.
func Heard(t testing.TB, dir string) (all []guardian.Message) {
	t.Helper()
	f, err := os.Open(heardFile(dir))
	executortest.Must(t, err)
	defer f.Close()

	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return all // the last line may be incomplete
		}

		var x guardian.Message
		executortest.Must(t, json.Unmarshal(line, &x))
		all = append(all, x)
	}
}

// Ear is the guardian's end of the pipe from the daemon.
type Ear struct {
	t     testing.TB
	lines *bufio.Reader
	pipe  *os.File
}

// Listen attaches a pipe to the client, so that the test takes the place of the guardian.
func Listen(t testing.TB, g *guardian.Client) *Ear {
	t.Helper()
	r, w, err := os.Pipe()
	executortest.Must(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	executortest.Must(t, g.Attach(w))

	return &Ear{t: t, lines: bufio.NewReader(r), pipe: r}
}

// Close closes the reading end of the pipe, as the death of a guardian does.
func (e *Ear) Close() { e.pipe.Close() }

// Hear reads messages until one satisfies is, and returns it. It fails the test if none arrives in time.
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
