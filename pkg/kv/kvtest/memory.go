package kvtest

import (
	"context"
	"testing"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
)

// Memory returns a client of an empty store in memory, which passes the same conformance
// suite as etcd. It is for tests of what is built on keys and revisions: it costs a test
// next to nothing, where an etcd costs a server and its connections. Both end with the test.
func Memory(t testing.TB) *kv.Client {
	t.Helper()

	memory := kvmem.New(kvmem.Config{MinTTL: 1}) // as the short elections of Start allow
	t.Cleanup(memory.Close)

	return ClientOf(t, memory)
}

// ClientOf returns one more client of a store in memory, closed with the test.
func ClientOf(t testing.TB, memory *kvmem.Store) *kv.Client {
	t.Helper()

	// Not the test's context: it is cancelled before clean-ups run.
	c := kv.Wrap(memory.Client(context.WithoutCancel(t.Context())), 0)
	t.Cleanup(func() { _ = c.Close() })

	return c
}
