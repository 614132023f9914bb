package mutant_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := leaks(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// leaks is what still runs a minute after the last test. goleak itself waits for less than a second, and connections may
// need longer to end.
func leaks() error {
	for deadline := time.Now().Add(time.Minute); ; {
		if err := goleak.Find(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
