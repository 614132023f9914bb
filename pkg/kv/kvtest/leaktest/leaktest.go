// Package leaktest fails the tests of a package that leave goroutines behind.
package leaktest

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
		if err := Check(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}

	os.Exit(code)
}

// Check returns an error that names the goroutines which still run after a minute.
// goleak itself waits for half a second, but connections between members of etcd end
// only when a read of theirs times out, after five.
func Check() error {
	for deadline := time.Now().Add(time.Minute); ; {
		if err := goleak.Find(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
