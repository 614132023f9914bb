package ui

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
)

// viewerBudget is the most memory that a viewer may cost a node: its connection, its goroutines, and what waits for it.
const viewerBudget = 64 << 10

// The viewers of a page share its rendering: each costs little more than its connection.
func TestLive_MemoryOfViewer(t *testing.T) {
	w := newWorld(t)
	for i := range 20 {
		w.create("default", fmt.Sprintf("task-%02d", i))
	}

	server := &http.Server{Handler: w.ui, ReadHeaderTimeout: time.Minute}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { must(t, server.Close()); <-done })

	const viewers = 60
	cookie := w.as("user:ann").cookie
	for _, at := range []string{"/ui", "/ui/tasks"} {
		first := openRawStream(t, l.Addr().String(), at, cookie, w.Record.ID)
		before := memoryInUse()

		var streams []net.Conn
		for range viewers {
			streams = append(streams, openRawStream(t, l.Addr().String(), at, cookie, w.Record.ID))
		}
		each := (memoryInUse() - before) / viewers
		t.Logf("a viewer of %s costs %.1f KiB", at, float64(each)/1024)
		if each > viewerBudget {
			t.Errorf("a viewer of %s costs %d bytes; at most %d are allowed", at, each, viewerBudget)
		}

		for _, c := range append(streams, first) {
			must(t, c.Close())
		}
	}
}

// openRawStream opens the stream of a page and reads its first message. Unlike a client of net/http, the caller's side uses
// almost no memory.
func openRawStream(t *testing.T, address, at, cookie, cluster string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	must(t, err)
	_, err = fmt.Fprintf(c, "GET /ui/live?at=%s HTTP/1.1\r\nHost: %s\r\nHX-Request: true\r\nCookie: %scarillon-%s=%s\r\n\r\n", at, address, securePrefix, cluster, cookie)
	must(t, err)

	must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	var read strings.Builder
	b := make([]byte, 32<<10)
	for !strings.Contains(read.String(), "event: "+eventAge) {
		n, err := c.Read(b)
		read.Write(b[:n])
		if err == io.EOF {
			t.Fatalf("the stream has ended: %s", read.String())
		}
		must(t, err)
	}

	return c
}

// memoryInUse returns how much memory live objects and stacks use, after unused ones are freed. Several collections are
// needed to shrink stacks.
func memoryInUse() int64 {
	for range 6 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)

	return int64(m.HeapAlloc + m.StackInuse)
}
