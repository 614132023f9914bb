package embedded_test

import (
	"flag"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4") // most tests wait for elections and timeouts
	leaktest.Main(m)
}

// eventually waits until cond holds, and fails the test after a minute.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)

	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// within receives a value from a channel, and fails the test after d.
func within[T any](t *testing.T, d time.Duration, what string, c <-chan T) T {
	t.Helper()

	select {
	case v := <-c:
		return v
	case <-time.After(d):
		t.Fatalf("not in %s: %s", d, what)
		panic("unreachable")
	}
}

func put(t *testing.T, c *kv.Client, key, value string) int64 {
	t.Helper()
	resp, err := c.Put(t.Context(), key, value)
	if err != nil {
		t.Fatal(err)
	}

	return resp.Header.Revision
}

func dial(t *testing.T, endpoint string) *kv.Client {
	t.Helper()
	c, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = c.Close() })

	return c
}
