package spool

import (
	"io"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patient is how long tests wait for something that must happen. On a busy machine, each step may take seconds.
const patient = 2 * time.Minute

// eventually polls until cond returns true.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(patient)

	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func readOutput(t *testing.T, s *Spool, run string) string {
	t.Helper()
	f, err := s.Open("default", "job", run, 1)
	if err != nil {
		t.Fatal(err)
	}

	defer f.Close()

	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}

	return string(b)
}
