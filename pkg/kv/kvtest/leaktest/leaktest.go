// Package leaktest makes the tests of a package fail if they leave goroutines behind. It is separate from kvtest, so that
// tests without etcd do not contain its client.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests of a package and exits. If the tests have passed but goroutines still run, the exit code is 1.
// It does not return.
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

// Check returns an error with the goroutines that still run after a minute. goleak itself waits for half a second,
// but connections between members of etcd end only when one of their reads times out, after five seconds.
func Check() error {
	for deadline := time.Now().Add(time.Minute); ; {
		if err := goleak.Find(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
