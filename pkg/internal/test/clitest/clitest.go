// Package clitest runs scripts of carillon commands against a server, for tests only. The commands run in the
// test's own process, through the real command tree, each with the script's environment.
//
// In addition to testscript's own commands, a script has:
//
//	[!] carillon WORD...   runs a command; with ! it must fail
//	code N                 the exit code of the last carillon was N
//	input FILE             the standard input of the next carillon
//	background WORD...     starts a carillon while the script continues
//	expect PATTERN         waits until its standard output matches; with -stderr
//	                       before the pattern, its standard error
//	interrupt              ends it as Ctrl-C does
//	join                   waits for it; stdout, stderr and code then refer to it
//	eventually WORD...     repeats a carillon until its standard output matches
//	                       the pattern after the last word --
//
// Name files as $WORK/name, because commands do not run in the script's directory.
package clitest

import (
	"bytes"
	"context"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/carillonhq/carillon/pkg/cli"
)

// Patience is how long one command, or one eventually, may take.
const Patience = 2 * time.Minute

// Server is the server that a script's commands use.
type Server struct{ URL, Token string }

// Commands are additional commands of scripts.
type Commands = map[string]func(ts *testscript.TestScript, neg bool, args []string)

// Run runs the scripts of a directory, each against the server that start returns for it. further are additional
// commands of the scripts.
func Run(t *testing.T, dir string, start func(env *testscript.Env) Server, further Commands) {
	t.Helper()
	all := Commands{"carillon": cmdCarillon, "code": cmdCode, "input": cmdInput, "background": cmdBackground, "join": cmdJoin,
		"expect": cmdExpect, "interrupt": cmdInterrupt, "eventually": cmdEventually}
	maps.Copy(all, further)
	testscript.Run(t, testscript.Params{
		Dir:                dir,
		RequireUniqueNames: true,
		Cmds:               all,
		Setup: func(env *testscript.Env) error {
			s := start(env)
			env.Setenv("CARILLON_SERVER", s.URL)
			env.Setenv("CARILLON_TOKEN", s.Token)
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("TZ", "UTC") // the user's time zone, whatever that of the host is
			env.Values[stateKey{}] = &state{}

			return nil
		},
	})
}

type stateKey struct{}

// state holds what one script's commands share.
type state struct {
	code  int
	stdin string
	back  *running
}

func stateOf(ts *testscript.TestScript) *state { return ts.Value(stateKey{}).(*state) }

// runCommand runs one command line.
func (s *state) runCommand(ts *testscript.TestScript, args []string, out, errs io.Writer) int {
	// Not the test's context, so that commands that a script does not wait for also end.
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()

	in := strings.NewReader(s.stdin)
	s.stdin = ""

	var said text
	code := cli.Main(ctx, args, cli.IO{In: in, Out: io.MultiWriter(out, &said), Err: io.MultiWriter(errs, &said), Env: ts.Getenv, Version: "v0.0.0-test", CompleteTimeout: Patience, CompleteFor: Patience})
	if wrong := wrongPlural.Find(said.Bytes()); wrong != nil {
		ts.Fatalf("carillon %s prints %q: see wording.Plural", strings.Join(args, " "), bytes.TrimSpace(wrong))
	}

	return code
}

// wrongPlural matches texts such as "1 tasks", which no command may print.
var wrongPlural = regexp.MustCompile(`(?m)(^|[ (])1 ([a-z]+ )?(alerts|attempts|days|differences|errors|events|findings|hosts|hours|jobs|lines|messages|namespaces|nodes|parts|` +
	`records|runs|secrets|shards|tasks|ticks|tokens|warnings)\b`)

func cmdCarillon(ts *testscript.TestScript, neg bool, args []string) {
	s := stateOf(ts)
	s.code = s.runCommand(ts, args, ts.Stdout(), ts.Stderr())
	if (s.code != 0) != neg {
		ts.Fatalf("carillon %s: exit code %d", strings.Join(args, " "), s.code)
	}
}

func cmdCode(ts *testscript.TestScript, _ bool, args []string) {
	if got := stateOf(ts).code; len(args) != 1 || args[0] != strconv.Itoa(got) {
		ts.Fatalf("exit code %d, want %v", got, args)
	}
}

func cmdInput(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: input FILE")
	}
	stateOf(ts).stdin = ts.ReadFile(args[0])
}

// running is a command in the background.
type running struct {
	done      chan struct{}
	end       context.CancelFunc
	code      int
	out, errs text
}

// text is the output of a command so far.
type text struct {
	mu sync.Mutex
	b  []byte
}

func (t *text) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.b = append(t.b, b...)
	return len(b), nil
}

func (t *text) Bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Clone(t.b)
}

// cmdBackground starts a command. A script has at most one in the background.
func cmdBackground(ts *testscript.TestScript, _ bool, args []string) {
	s := stateOf(ts)
	if s.back != nil {
		ts.Fatalf("one command at a time may be in the background")
	}

	r := &running{done: make(chan struct{})}
	s.back = r
	in := strings.NewReader(s.stdin)
	s.stdin = ""

	env := map[string]string{}
	for _, name := range []string{"CARILLON_SERVER", "CARILLON_TOKEN", "CARILLON_NAMESPACE", "CARILLON_CONTEXT", "CARILLON_CONFIG", "HOME", "TZ"} {
		env[name] = ts.Getenv(name)
	}

	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	r.end = cancel
	go func() {
		defer close(r.done)
		defer cancel()
		r.code = cli.Main(ctx, args, cli.IO{In: in, Out: &r.out, Err: &r.errs,
			Env: func(name string) string { return env[name] }, Version: "v0.0.0-test"})
	}()

	ts.Defer(func() { <-r.done })
}

// runningCommand returns the command in the background.
func runningCommand(ts *testscript.TestScript) *running {
	r := stateOf(ts).back
	if r == nil {
		ts.Fatalf("nothing is in the background")
	}
	return r
}

func cmdInterrupt(ts *testscript.TestScript, _ bool, _ []string) { runningCommand(ts).end() }

// cmdExpect waits until the output of the background command matches.
func cmdExpect(ts *testscript.TestScript, _ bool, args []string) {
	beside := len(args) > 0 && args[0] == "-stderr"
	if beside {
		args = args[1:]
	}

	if len(args) != 1 {
		ts.Fatalf("usage: expect [-stderr] PATTERN")
	}

	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	r := runningCommand(ts)

	said := &r.out
	if beside {
		said = &r.errs
	}

	for end := time.Now().Add(Patience); !pattern.Match(said.Bytes()); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("no match for %q in\n%s%s", pattern, r.out.Bytes(), r.errs.Bytes())
		}
	}
}

// cmdJoin waits for the background command, and makes its output that of the last command.
func cmdJoin(ts *testscript.TestScript, _ bool, _ []string) {
	s := stateOf(ts)
	<-runningCommand(ts).done
	s.code = s.back.code
	writeBytes(ts, ts.Stdout(), &s.back.out)
	writeBytes(ts, ts.Stderr(), &s.back.errs)
	s.back = nil
}

// cmdEventually repeats a command until its output matches.
func cmdEventually(ts *testscript.TestScript, _ bool, args []string) {
	at := slices.Index(args, "--")
	if at < 0 || at != len(args)-2 {
		ts.Fatalf("usage: eventually WORD... -- PATTERN")
	}

	pattern, err := regexp.Compile("(?m)" + args[len(args)-1])
	ts.Check(err)
	s := stateOf(ts)
	var out, errs bytes.Buffer

	for end := time.Now().Add(Patience); ; time.Sleep(50 * time.Millisecond) {
		out.Reset()
		errs.Reset()
		s.code = s.runCommand(ts, args[:at], &out, &errs)

		if pattern.Match(out.Bytes()) {
			break
		}

		if time.Now().After(end) {
			ts.Fatalf("carillon %s: no match for %q in\n%s%s", strings.Join(args[:at], " "), pattern, &out, &errs)
		}
	}

	writeBytes(ts, ts.Stdout(), &out)
}

func writeBytes(ts *testscript.TestScript, w io.Writer, b interface{ Bytes() []byte }) {
	_, err := w.Write(b.Bytes())
	ts.Check(err)
}
