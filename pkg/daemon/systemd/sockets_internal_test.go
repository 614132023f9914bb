package systemd

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// socketDir returns a directory for a socket, with a short path and to which no other user can write.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "socket")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { os.RemoveAll(dir) })

	return dir
}

// passedOn returns a socket as the service manager passes it on. The manager keeps its own copy.
func passedOn(t *testing.T, l net.Listener) *os.File {
	t.Helper()
	f, err := l.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { f.Close() })

	return f
}

func listenFor(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { l.Close() })

	return l
}

// Verifies: G40
func TestInherited_SocketsAreMatchedByTheirAddress(t *testing.T) {
	path := filepath.Join(socketDir(t), "api.sock")
	socket, port := listenFor(t, "unix", path), listenFor(t, "tcp", "127.0.0.1:0")
	logged, logs := observer.New(zap.ErrorLevel)
	cfg := Addresses{Socket: path, Listen: port.Addr().String()}

	s := matchSockets([]*os.File{passedOn(t, port), passedOn(t, socket)}, &cfg, zap.New(logged))

	if logs.Len() > 0 {
		t.Errorf("logged %v", logs.All())
	}

	own := func() (net.Listener, error) { return nil, errors.New("listens by itself") }

	for _, f := range []*os.File{s.Unix, s.TCP} {
		for range 2 { // a process may start several instances of the node
			l, err := ListenInherited(f, own)
			if err != nil {
				t.Fatal(err)
			}

			c, err := net.Dial(l.Addr().Network(), l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}

			accepted, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}

			accepted.Close()
			c.Close()
			l.Close()
		}
	}

	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the service manager's socket was removed: %v", err)
	}

	// No process accepts connections now, but the service manager still holds both sockets.
	s.Close()

	for _, l := range []net.Listener{socket, port} {
		c, err := net.Dial(l.Addr().Network(), l.Addr().String())
		if err != nil {
			t.Fatalf("a connection did not wait for the next daemon: %v", err)
		}
		c.Close()
	}
}

// A node that was installed before the socket unit existed has no setting for the socket.
//
// Verifies: G40
func TestInherited_PathIsTheDefaultOfTheSetting(t *testing.T) {
	path := filepath.Join(socketDir(t), "api.sock")
	cfg := Addresses{Listen: "127.0.0.1:7070"}

	s := matchSockets([]*os.File{passedOn(t, listenFor(t, "unix", path))}, &cfg, zap.NewNop())

	if s.Unix == nil || cfg.Socket != path {
		t.Errorf("the socket is %v, the setting %q", s.Unix, cfg.Socket)
	}
}

// Sockets that are not used refuse connections, although the service manager keeps a copy open. Otherwise clients
// would wait, and other nodes would count a node that has ended as alive.
//
// Verifies: G40
func TestInherited_OtherSocketsAreClosed(t *testing.T) {
	path := filepath.Join(socketDir(t), "api.sock")
	other := filepath.Join(socketDir(t), "other.sock")
	for _, tc := range []struct {
		name             string
		network, address string
		cfg              Addresses
		why              string
	}{
		{"another path", "unix", other, Addresses{Socket: path}, `it listens on "` + other + `", and socket is "` + path + `"`},
		{"another port", "tcp", "127.0.0.1:0", Addresses{Listen: "127.0.0.1:1"}, `and listen is "127.0.0.1:1"`},
		{"a port while the daemon listens on all addresses", "tcp", "127.0.0.1:0", Addresses{Listen: "0.0.0.0:7070"}, `and listen is "0.0.0.0:7070"`},
		{"a host by name", "tcp", "127.0.0.1:0", Addresses{Listen: "example.org:7070"}, `and listen is "example.org:7070"`},
		{"a port of the cluster", "tcp", "0.0.0.0:0", Addresses{}, "can be reached from other hosts"},
		{"an abstract socket", "unix", "@carillon-test-" + filepath.Base(filepath.Dir(path)), Addresses{}, "is not a clean absolute path"},
	} {
		l := listenFor(t, tc.network, tc.address)
		logged, logs := observer.New(zap.ErrorLevel)

		if tc.cfg.Listen == "" {
			tc.cfg.Listen = l.Addr().String()
		}

		s := matchSockets([]*os.File{passedOn(t, l)}, &tc.cfg, zap.New(logged))

		if s.Unix != nil || s.TCP != nil {
			t.Errorf("%s: it is used", tc.name)
		}

		if all := logs.All(); len(all) != 1 || !strings.Contains(all[0].ContextMap()["error"].(string), tc.why) {
			t.Errorf("%s: logged %v", tc.name, all)
		}

		if c, err := net.Dial(tc.network, l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: a client gets %v, %v", tc.name, c, err)
		}

		if tc.network == "tcp" {
			own, err := net.Listen("tcp", l.Addr().String())
			if err != nil {
				t.Errorf("%s: the daemon cannot listen there itself: %v", tc.name, err)
				continue
			}

			own.Close()
		}
	}
}

// Verifies: G40
func TestInherited_WhatIsNoListenerIsClosed(t *testing.T) {
	dir := socketDir(t)
	file, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}

	datagrams, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "datagrams"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}

	defer datagrams.Close()

	datagram, err := datagrams.File()
	if err != nil {
		t.Fatal(err)
	}

	l := listenFor(t, "unix", filepath.Join(dir, "api.sock"))
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}

	defer c.Close()

	connection, err := c.(*net.UnixConn).File()
	if err != nil {
		t.Fatal(err)
	}

	first, second := passedOn(t, l), passedOn(t, l)
	cfg := Addresses{Listen: "127.0.0.1:7070"}

	s := matchSockets([]*os.File{file, datagram, connection, first, second}, &cfg, zap.NewNop())

	if s.Unix != first || s.TCP != nil {
		t.Errorf("it listens on %v and %v", s.Unix, s.TCP)
	}

	again, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatalf("a second descriptor of the socket has closed it: %v", err)
	}

	again.Close()

	for _, f := range []*os.File{file, datagram, connection, second} {
		if err := f.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s was left open: %v", f.Name(), err)
		}
	}
}
