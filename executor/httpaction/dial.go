package httpaction

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/policy"
)

const (
	dialLimit      = 10 * time.Second // for name resolution and the connection
	handshakeLimit = 10 * time.Second
	// maxUserTimeout is the maximum of TCP_USER_TIMEOUT; see attempt.userTimeout.
	maxUserTimeout = 30 * time.Second
)

// dialer opens the connections of one transport. All of them were judged by the same rules.
type dialer struct {
	guard    *guard
	rules    *policy.HTTP
	resolver *net.Resolver // nil: the host's
	tls      *tls.Config
}

// dialPlain opens a connection for http.
func (d *dialer) dialPlain(ctx context.Context, _, addr string) (net.Conn, error) {
	c, err := d.dial(ctx, addr)
	if err != nil {
		return nil, err
	}

	c.isOpen.Store(true)

	return c, nil
}

// dialTLS opens a connection for https. It performs the handshake itself, so that the gate knows its end.
func (d *dialer) dialTLS(ctx context.Context, _, addr string) (net.Conn, error) {
	c, err := d.dial(ctx, addr)
	if err != nil {
		return nil, err
	}

	cfg := d.tls.Clone()
	cfg.ServerName, _, _ = net.SplitHostPort(addr)
	secure := tls.Client(c, cfg)

	ctx, cancel := context.WithTimeoutCause(ctx, handshakeLimit, errHandshakeTime)
	defer cancel()

	if err := secure.HandshakeContext(ctx); err != nil {
		c.Close()
		if errors.Is(context.Cause(ctx), errHandshakeTime) {
			err = errHandshakeTime
		}
		return nil, err
	}

	c.isOpen.Store(true)

	return secure, nil
}

// errHandshakeTime means that the target did not complete the TLS handshake in time.
var errHandshakeTime = fmt.Errorf("no TLS handshake within %s", handshakeLimit)

// dial resolves the host and connects to one of its addresses that the guard allows.
func (d *dialer) dial(ctx context.Context, addr string) (*gatedConn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}

	inner := net.Dialer{Timeout: dialLimit, Resolver: d.resolver, ControlContext: func(ctx context.Context, network, address string, raw syscall.RawConn) error {
		if err := d.judge(ctx, network, address, host); err != nil {
			return err
		}
		return setOptions(raw)
	}}
	inner.SetMultipathTCP(false) // TCP_USER_TIMEOUT and SO_LINGER must have their usual effect

	conn, err := inner.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}

	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("%T is not a TCP connection", conn)
	}

	c, err := newGatedConn(tcp)
	if err != nil {
		conn.Close()
		return nil, err
	}

	return c, nil
}

// judge judges one address directly before the connection.
func (d *dialer) judge(ctx context.Context, network, address, host string) error {
	if network != "tcp4" && network != "tcp6" {
		return &policy.Refusal{Rule: "http", Why: "only TCP is allowed"}
	}

	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return &policy.Refusal{Rule: "http", Why: "the address is not valid"}
	}

	return d.guard.judge(ctx, at, host, d.rules)
}

// setOptions prepares a socket before it is connected. With SO_LINGER 0, closing it or the death of this process
// discards what the target has not received. Without it, the kernel would deliver the rest of a request minutes later.
func setOptions(raw syscall.RawConn) error {
	var set error
	err := raw.Control(func(fd uintptr) {
		set = errors.Join(unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}), setUserTimeout(int(fd), maxUserTimeout))
	})

	return errors.Join(err, set)
}

// setUserTimeout sets TCP_USER_TIMEOUT.
func setUserTimeout(fd int, limit time.Duration) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
}
