// Command etcd runs an etcd with one member for tests (see package kvtest). It is the server that agents embed.
//
// The command writes "ready ENDPOINT" to its standard output when it serves clients. It stops when its standard input is
// closed, which also happens when the test that started it is killed.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/carillonhq/carillon/pkg/kv/embedded/embeddedtest"
)

// startTimeout is long because many tests run at once. A start usually takes 50 ms.
const startTimeout = 2 * time.Minute

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "the test's etcd:", err)
		os.Exit(1)
	}
}

func run() error {
	dir := flag.String("dir", "", "the data directory")
	quota := flag.Int64("quota", 0, "the maximum size of the data in bytes; 0: 8 GiB")
	flag.Parse()

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()

	server, err := embeddedtest.Start(ctx, *dir, *quota)
	if err != nil {
		return err
	}

	fmt.Println("ready", server.Endpoint())

	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()

	select {
	case <-closed:
		return server.Close()
	case <-server.Done():
		return server.Err()
	}
}
