package kv_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv/embedded"
)

func TestServer_CloseDoesNotWaitForAClientThatNeverSpeaks(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}

	c, err := net.Dial("unix", strings.TrimPrefix(s.Endpoint(), "unix://"))
	if err != nil {
		t.Fatal(err)
	}

	defer c.Close()

	if _, err := s.Client().Get(t.Context(), "/any"); err != nil {
		t.Fatal(err)
	}

	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()

	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for a client that never speaks")
	}
}
