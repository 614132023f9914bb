package connlimit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/internal/connlimit"
)

// noDescriptorLimit is larger than any descriptor of a test.
const noDescriptorLimit = 1 << 30

// server answers "ok" on a listener with limits. A request for /login?NAME authenticates its connection as NAME.
type server struct {
	t       *testing.T
	network string
	address string
	metrics *prometheus.Registry
	logs    *observer.ObservedLogs
}

func serve(t *testing.T, cfg connlimit.Config, network, address string) *server {
	t.Helper()
	core, logs := observer.New(zapcore.WarnLevel)
	cfg.Name, cfg.Logger = "test", zap.New(core)
	limiter := connlimit.New(cfg)
	s := &server{t: t, network: network, metrics: prometheus.NewRegistry(), logs: logs}
	limiter.Register(s.metrics)

	inner, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}

	s.address = inner.Addr().String()

	h := &http.Server{ConnContext: connlimit.Context, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/login" {
			connlimit.Authenticated(r.Context(), r.URL.RawQuery)
		}
		fmt.Fprint(w, "ok")
	})}

	go h.Serve(limiter.Listener(inner))
	t.Cleanup(func() { h.Close() })

	return s
}

// client is one connection to a server.
type client struct {
	net.Conn
	answers *bufio.Reader
}

func (s *server) dialFrom(local string) *client {
	s.t.Helper()
	var d net.Dialer
	if local != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(local)}
	}

	c, err := d.DialContext(s.t.Context(), s.network, s.address)
	if err != nil {
		s.t.Fatal(err)
	}

	s.t.Cleanup(func() { c.Close() })

	return &client{c, bufio.NewReader(c)}
}

func (s *server) dial() *client { s.t.Helper(); return s.dialFrom("") }

// get makes a request on the connection, which proves that the connection is open.
func (c *client) get(path string) error {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))

	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path); err != nil {
		return err
	}

	res, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		return err
	}

	_, err = io.Copy(io.Discard, res.Body)

	return err
}

func (s *server) mustGet(c *client, path string) {
	s.t.Helper()
	if err := c.get(path); err != nil {
		s.t.Fatalf("GET %s: %v", path, err)
	}
}

// wantClosed waits until the server closes the connection.
func (s *server) wantClosed(c *client, what string) {
	s.t.Helper()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))

	_, err := c.answers.ReadByte()
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		s.t.Fatalf("%s is still open: %v", what, err)
	}
}

// wantClosedBy checks how many connections were closed because of each limit.
func (s *server) wantClosedBy(limit string, want float64) {
	s.t.Helper()
	families, err := s.metrics.Gather()
	if err != nil {
		s.t.Fatal(err)
	}

	for _, f := range families {
		if f.GetName() != "carillon_api_connections_closed_total" {
			continue
		}

		for _, m := range f.GetMetric() {
			wantThis := 0.0
			if m.GetLabel()[0].GetValue() == limit {
				wantThis = want
			}

			if got := m.GetCounter().GetValue(); got != wantThis {
				s.t.Errorf("%v: %v connections were closed, want %v", m.GetLabel(), got, wantThis)
			}
		}
	}
}

// Verifies: G41
func TestLimiter_ManyIdleConnectionsCannotKeepOutANewOne(t *testing.T) {
	s := serve(t, connlimit.Config{Total: 100, PerClient: 8, MaxDescriptor: noDescriptorLimit}, "tcp", "127.0.0.1:0")

	// Three times as many connections as one client may have, which send nothing, or
	// half a request.
	var idle []*client
	for i := range 24 {
		c := s.dial()
		if i%2 == 0 {
			fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\nx")
		}
		idle = append(idle, c)
	}

	s.mustGet(s.dial(), "/healthz")
	s.wantClosed(idle[0], "the oldest connection")
	s.wantClosedBy("client", 17)

	if n := s.logs.Len(); n != 1 {
		t.Errorf("%d lines of log, not 1", n)
	}
}

// Verifies: G41
func TestLimiter_AuthenticatedConnectionsStay(t *testing.T) {
	s := serve(t, connlimit.Config{Total: 16, PerClient: 4, MaxDescriptor: noDescriptorLimit}, "tcp", "127.0.0.1:0")

	var known []*client
	for i := range 8 {
		c := s.dial()
		s.mustGet(c, fmt.Sprintf("/login?%d", i%4))
		known = append(known, c)
	}

	for range 30 {
		s.dial()
	}

	s.mustGet(s.dial(), "/healthz")

	for _, c := range known {
		s.mustGet(c, "/")
	}
}

// Verifies: G41
func TestLimiter_TokensCannotTakeTheLastPlaces(t *testing.T) {
	s := serve(t, connlimit.Config{Total: 16, PerClient: 16, MaxDescriptor: noDescriptorLimit}, "tcp", "127.0.0.1:0")

	for i := range 16 {
		s.mustGet(s.dial(), fmt.Sprintf("/login?%d", i))
	}

	s.mustGet(s.dial(), "/healthz")
	s.wantClosedBy("total", 1)
}

// A subject with very many connections loses only its own, also if others than itself need the places.
//
// Verifies: G41
func TestLimiter_OneSubjectCannotTakeThePlacesOfOthers(t *testing.T) {
	s := serve(t, connlimit.Config{Total: 1024, PerClient: 256, MaxDescriptor: noDescriptorLimit}, "tcp", "127.0.0.1:0")

	for range 900 {
		s.mustGet(s.dialFrom("127.0.0.2"), "/login?flooder")
	}
	other := s.dial()
	s.mustGet(other, "/login?other")
	for range 400 {
		s.dial()
	}

	s.mustGet(other, "/")
	s.mustGet(s.dial(), "/healthz")
}

// However many subjects have many connections together, each one keeps its share.
//
// Verifies: G41
func TestLimiter_SubjectsShareThePlaces(t *testing.T) {
	s := serve(t, connlimit.Config{Total: 16, PerClient: 16, MaxDescriptor: noDescriptorLimit}, "tcp", "127.0.0.1:0") // 14 places, 3 for each

	clients := map[string][]*client{}
	for _, subject := range []string{"a", "b", "c", "d", "late"} {
		for range 3 {
			c := s.dial()
			s.mustGet(c, "/login?"+subject)
			clients[subject] = append(clients[subject], c)
		}
	}
	for range 40 {
		s.dial()
	}

	open := 0
	for subject, list := range clients {
		kept := 0
		for _, c := range list {
			if c.get("/") == nil {
				kept++
			}
		}
		if open += kept; kept < 2 {
			t.Errorf("%s has kept %d connections", subject, kept)
		}
	}
	if open != 14 {
		t.Errorf("%d connections with a token are open, want 14", open)
	}
}

// Any local user can connect from all of 127.0.0.0/8, so these addresses are one client.
//
// Verifies: G41
func TestLimiter_LoopbackIsOneClient(t *testing.T) {
	s := serve(t, connlimit.Config{Total: 100, PerClient: 4, MaxDescriptor: noDescriptorLimit}, "tcp", "127.0.0.1:0")

	first := s.dialFrom("127.0.0.2")

	for i := range 4 {
		s.mustGet(s.dialFrom(fmt.Sprintf("127.0.0.%d", 3+i)), "/")
	}

	s.wantClosed(first, "the oldest connection of loopback")
}

func TestClientOf(t *testing.T) {
	for remote, want := range map[string]string{
		"127.0.0.1:1":                     "loopback",
		"127.9.8.7:1":                     "loopback",
		"[::1]:1":                         "loopback",
		"[::ffff:127.0.0.1]:1":            "loopback",
		"10.0.0.7:1":                      "10.0.0.7",
		"[::ffff:10.0.0.7]:1":             "10.0.0.7",
		"[2001:db8:1:2:3:4:5:6]:1":        "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff:ffff:0:1]:99": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1":                "fe80::/64",
		"@":                               "unknown",
		"":                                "unknown",
	} {
		if got := connlimit.ClientOf(remote); got != want {
			t.Errorf("%q is client %q, want %q", remote, got, want)
		}
	}
}

// Verifies: G41
func TestLimiter_KeepsDescriptorsInReserve(t *testing.T) {
	// The kernel assigns the lowest free number, so all numbers below this one are in use.
	probe, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}

	next := int(probe.Fd())
	probe.Close()

	const room = 20
	s := serve(t, connlimit.Config{Total: 1000, PerClient: 1000, MaxDescriptor: next + room}, "tcp", "127.0.0.1:0")

	for range 3 * room { // each connection has two descriptors in this process: the test's, and the server's
		s.dial()
	}

	s.mustGet(s.dial(), "/healthz")

	// Some more than room, because descriptors of earlier tests may have been closed since.
	if n := s.openConnections(); n > 2*room {
		t.Errorf("the server has %v connections open, with %d descriptors for them", n, room)
	}
}

func (s *server) openConnections() float64 {
	s.t.Helper()
	families, err := s.metrics.Gather()
	if err != nil {
		s.t.Fatal(err)
	}

	for _, f := range families {
		if f.GetName() == "carillon_api_connections" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}

	s.t.Fatal("there is no gauge of connections")

	return 0
}

// Verifies: G41
func TestLimiter_UsersOfASocketHaveTheirOwnLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s := serve(t, connlimit.Config{Total: 100, PerClient: 4, MaxDescriptor: noDescriptorLimit,
		Trusted: func(c net.Conn) bool { uid, ok := connlimit.PeerUID(c); return ok && int(uid) == os.Getuid() }}, "unix", path)

	var own []*client
	for range 10 {
		own = append(own, s.dial())
	}

	for _, c := range own {
		s.mustGet(c, "/")
	}

	s.wantClosedBy("client", 0)
}

func TestPeerUID(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}

	defer l.Close()

	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}

	defer c.Close()

	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}

	defer accepted.Close()

	if uid, ok := connlimit.PeerUID(accepted); !ok || int(uid) != syscall.Getuid() {
		t.Errorf("the peer is uid %d (%v), not %d", uid, ok, syscall.Getuid())
	}

	if got, want := connlimit.Client(accepted), fmt.Sprintf("uid=%d", syscall.Getuid()); got != want {
		t.Errorf("the client is %q, not %q", got, want)
	}

	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()

	if _, ok := connlimit.PeerUID(a); ok {
		t.Error("a pipe has a peer")
	}

	connlimit.Authenticated(connlimit.Context(context.Background(), a), "user:ann") // not one of a limiter's
}

// The kernel records the groups that a process has when it connects, not those of its user in /etc/group.
//
// Verifies: G39
func TestPeerInGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can connect with other groups")
	}

	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}

	defer l.Close()

	many := make([]uint32, 200) // more than the first read has room for
	for i := range many {
		many[i] = uint32(5000 + i)
	}

	for _, tc := range []struct {
		primary       uint32
		supplementary []uint32
		group         uint32
		want          bool
	}{
		{primary: 4711, group: 4711, want: true},
		{primary: 1, supplementary: []uint32{2, 4711}, group: 4711, want: true},
		{primary: 1, supplementary: many, group: 5199, want: true},
		{primary: 1, supplementary: many, group: 5200, want: false},
		{primary: 1, supplementary: []uint32{2, 3}, group: 4711, want: false},
		{primary: 1, group: 0, want: false},
	} {
		c := dialWithGroups(t, path, tc.primary, tc.supplementary)
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}

		if got := connlimit.PeerInGroup(accepted, tc.group); got != tc.want {
			t.Errorf("a process with group %d and %d others is in %d: %v", tc.primary, len(tc.supplementary), tc.group, got)
		}

		accepted.Close()
		c.Close()
	}
}

// dialWithGroups connects to a unix socket from a thread that has other groups than this process. The thread stays
// locked, so it ends with its goroutine.
func dialWithGroups(t *testing.T, path string, primary uint32, supplementary []uint32) (c net.Conn) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		_, _, failed := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(supplementary)), uintptr(unsafe.Pointer(unsafe.SliceData(supplementary))), 0)
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESGID, uintptr(primary), uintptr(primary), uintptr(primary)); errno != 0 {
			failed = errno
		}

		if failed != 0 {
			done <- failed
			return
		}

		var err error
		c, err = net.Dial("unix", path)
		done <- err
	}()

	if err := <-done; err != nil {
		t.Fatal(err)
	}

	return c
}
