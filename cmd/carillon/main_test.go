package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/carillonhq/carillon/pkg/kv"
)

// TestMain lets the test binary act as the program, for the scripts and for processes that the program starts
// from its own binary.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"carillon": main})
}

// raceOptions is GORACE for all programs that the tests start. By default, the race detector waits for a second
// whenever a process exits, and these scripts run a hundred commands.
const raceOptions = "atexit_sleep_ms=0"

// TestProgram runs scripts of the program itself, in separate processes. In addition to testscript's commands,
// they have "await PROGRAM ARG...", which repeats it until it succeeds. PORT1 to PORT6 are free ports.
func TestProgram(t *testing.T) { runScripts(t, "testdata/script") }

// TestProgram_Stories runs the scripts that start daemons.
func TestProgram_Stories(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // they wait most of the time
	runScripts(t, "testdata/story")
}

func runScripts(t *testing.T, dir string) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Dir:                dir,
		RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("GORACE", raceOptions)

			for i := range 6 {
				env.Setenv(fmt.Sprintf("PORT%d", i+1), fmt.Sprint(freePort()))
			}

			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"await": await, "snapshot": snapshot},
	})
}

var handedOut sync.Map

// freePort returns a port that nothing else uses before the program listens on it: no test of this package, no
// test of another package (kv uses lower ports, daemon higher ones), and not the system, which assigns ports
// from 32768 on.
func freePort() int {
	for {
		port := 20000 + rand.N(2000)
		if _, ok := handedOut.LoadOrStore(port, true); ok {
			continue
		}

		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = l.Close()
			return port
		}
	}
}

// snapshot implements the script command "snapshot SOCKET FILE": it saves a snapshot of an etcd, as etcdctl does.
func snapshot(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	etcd, err := kv.Dial(ctx, kv.Config{Endpoints: []string{"unix://" + args[0]}})
	ts.Check(err)
	defer etcd.Close()

	from, err := etcd.Snapshot(ctx)
	ts.Check(err)
	defer from.Close()

	content, err := io.ReadAll(from)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), content, 0o600))
}

func await(ts *testscript.TestScript, _ bool, args []string) {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		err := ts.Exec(args[0], args[1:]...)
		if err == nil {
			return
		}

		if time.Now().After(end) {
			ts.Fatalf("await %v: %v", args, err)
		}
	}
}
