package client

import (
	"net"
	"os"
	"testing"
)

// A server that ends while its owner is looked up counts as unreachable, like one that refuses the connection.
// It does not count as untrusted, and a write to it was certainly not executed.
func TestListener_ThatEndsMeanwhileIsAway(t *testing.T) {
	t.Parallel()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}

	defer conn.Close()

	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}

	err = peerCheck{own: os.Geteuid(), token: true}.checkTCP(conn)

	c := &server{base: "http://" + listener.Addr().String()}
	if e := c.errorWithoutAnswer(err, true); e.Code != CodeUnavailable {
		t.Errorf("a write: %s, %v", e.Code, err)
	}
}
