package kvtest

import (
	"context"
	"testing"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
)

// Memory returns a client of an empty in-memory store, which passes the same conformance suite as etcd. It costs a
// test next to nothing, while an etcd needs a server and its connections. Both are closed when the test ends.
func Memory(t testing.TB) *kv.Client {
	t.Helper()

	memory := kvmem.New(kvmem.Config{MinTTL: 1}) // the minimum that results from the short elections of Start
	t.Cleanup(memory.Close)

	return ClientOf(t, memory)
}

// ClientOf returns another client of an in-memory store. It is closed when the test ends.
func ClientOf(t testing.TB, memory *kvmem.Store) *kv.Client {
	t.Helper()

	// The context of the test is cancelled before the cleanups run, so it cannot be used here.
	c := kv.Wrap(memory.Client(context.WithoutCancel(t.Context())), 0)
	t.Cleanup(func() { _ = c.Close() })

	return c
}
