package kvtest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests of a package and ends the process: with 1 also if they have passed
// and goroutines of theirs go on.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := Leaks(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Leaks says which goroutines still run after a minute. goleak itself waits for half a second; connections between members
// of etcd end when a read of theirs times out, after five.
func Leaks() error {
	for deadline := time.Now().Add(time.Minute); ; {
		if err := goleak.Find(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
