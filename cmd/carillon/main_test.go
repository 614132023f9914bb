package main

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets the test's binary be the program, for its scripts and for what it
// starts of itself.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"carillon": main})
}

// TestProgram runs scripts of the program itself, in processes of their own. Beside
// testscript's commands they have "await PROGRAM ARG...", which runs it until it
// succeeds; PORT1 to PORT6 are free.
func TestProgram(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                "testdata/script",
		RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			for i := range 6 {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					return err
				}
				defer l.Close()
				env.Setenv(fmt.Sprintf("PORT%d", i+1), fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
			}
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"await": await},
	})
}

func await(ts *testscript.TestScript, _ bool, args []string) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		err := ts.Exec(args[0], args[1:]...)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("await %v: %v", args, err)
		}
	}
}
