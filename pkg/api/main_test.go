package api_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// shared is the etcd of all tests; each has a prefix of its own.
var shared *kv.Client

func TestMain(m *testing.M) {
	code, err := run(m)
	if err == nil {
		err = kvtest.Leaks()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "api-test-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	server, err := kv.StartServer(ctx, kv.ServerConfig{Dir: dir, Tick: 10 * time.Millisecond, Election: 100 * time.Millisecond})
	if err != nil {
		return 1, err
	}
	defer server.Close()
	if shared, err = kv.Dial(ctx, kv.Config{Endpoints: []string{server.Endpoint()}}); err != nil {
		return 1, err
	}
	defer shared.Close()
	return m.Run(), nil
}
