// Package embeddedtest starts etcd servers in the process of a test, for tests of the in-process client. All other tests
// use package kvtest, so that they do not contain etcd.
package embeddedtest

import (
	"context"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv/embedded"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// startTimeout is long because many tests run at once. A start usually takes 50 ms.
const startTimeout = 2 * time.Minute

// Start starts an etcd with one member, fast elections, and passwords that are cheap to check. quota is the maximum
// size of the data in bytes, 0 means 8 GiB. The caller must close the server.
func Start(ctx context.Context, dir string, quota int64) (*embedded.Server, error) {
	return embedded.Start(ctx, embedded.Config{
		Dir: dir, Tick: 10 * time.Millisecond, Election: 100 * time.Millisecond, PasswordCost: 4, QuotaBytes: quota,
	})
}

// StartServer starts an etcd like kvtest.StartServer, but in this process. It is stopped when the test ends.
func StartServer(t testing.TB) *kvtest.Server {
	t.Helper()

	return kvtest.StartMember(t, func(dir string) (kvtest.Member, error) {
		// The context of the test is cancelled before the cleanups run, and a cleanup may restart the server.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startTimeout)
		defer cancel()

		return Start(ctx, dir, 0)
	})
}
