package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// errServerGone means that the server has closed the connection, or stopped listening, before its owner
// could be found. Nothing was sent.
var errServerGone = fmt.Errorf("the server is gone: %w", syscall.ECONNRESET)

// untrusted is why nothing is sent to whatever listens at an address.
type untrusted struct{ why, hint string }

func (u *untrusted) Error() string { return u.why }

// peerCheck finds out whose program is at the other end of a connection.
//
// A port of the loopback interface, or a path, is no proof of who the server is: while
// the daemon is down, any user of the host may listen there, and would be given the
// token. What is sent goes only to a program of root's, of the caller's own, or of a
// user who has the token anyway.
type peerCheck struct {
	own      int
	trusted  []int
	token    bool
	insecure bool
}

func (p peerCheck) trustsUser(uid int) bool {
	if uid == 0 || uid == p.own {
		return true
	}

	for _, t := range p.trusted {
		if uid == t {
			return true
		}
	}

	return false
}

// checkTCP checks a connection without TLS before anything is sent over it.
func (p peerCheck) checkTCP(c net.Conn) error {
	if !p.token || p.insecure {
		return nil
	}

	local, ok := c.LocalAddr().(*net.TCPAddr)
	remote, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if !ok || !ok2 {
		return nil
	}

	if !remote.IP.IsLoopback() {
		return &untrusted{
			why:  fmt.Sprintf("%s is on another host, and without TLS everybody on the way could read the token", remote),
			hint: "use https://, or accept the risk with --insecure"}
	}

	uids, err := ownersOfServer(local, remote)
	if errors.Is(err, errServerGone) {
		// A connection that fails before anything was sent: the server may be back soon.
		return &net.OpError{Op: "dial", Net: "tcp", Addr: remote, Err: err}
	}

	if err != nil {
		return &untrusted{
			why:  fmt.Sprintf("cannot find out whose program listens at %s: %v", remote, err),
			hint: "use the daemon's socket (--server unix:///run/carillon/api.sock) or https://, or accept the risk with --insecure"}
	}

	for _, uid := range uids {
		if !p.trustsUser(uid) {
			return &untrusted{
				why:  fmt.Sprintf("the program that listens at %s belongs to user %d, who could take the token", remote, uid),
				hint: "if it is Carillon's, use its socket (--server unix:///run/carillon/api.sock), or accept the risk with --insecure; else end it"}
		}
	}

	return nil
}

// newTransport carries calls to a server, and checks what is at the other end. It never
// uses a proxy for http: the proxy would read the token.
func (p peerCheck) newTransport(base *http.Transport, socket string, plain bool) *http.Transport {
	t := base.Clone()
	dial := (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	checked := func(c net.Conn, err error, check func(net.Conn) error) (net.Conn, error) {
		if err != nil {
			return nil, err
		}

		if err := check(c); err != nil {
			_ = c.Close() // nothing was sent
			return nil, err
		}

		return c, nil
	}

	switch {
	case socket != "":
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := dial(ctx, "unix", socket)
			return checked(c, err, func(c net.Conn) error { return p.checkUnix(c, socket) })
		}

	case plain:
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			return checked(c, err, p.checkTCP)
		}
	}

	return t
}

// isLoopback reports whether a host of a URL is this host by its name or its address. A
// name is looked at again when it has become an address.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// failedTrust reports whether a call was not sent because of who listens; then e says so.
func (c *connection) failedTrust(e *Error, err error) bool {
	var u *untrusted
	if !errors.As(err, &u) {
		return false
	}

	e.Code, e.Message, e.Hint = CodeUntrusted, u.why+"; nothing was sent", u.hint

	return true
}
