package httpaction

import (
	"container/list"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/policy"
)

const (
	maxTransports = 256
	// idleLimit is how long a connection waits for another request. Servers close idle connections after 2 to 60
	// seconds. A request that meets that moment is lost, and periodic requests meet it often.
	idleLimit      = time.Second
	maxIdlePerHost = 128
	maxIdle        = 512
	maxHeaderBytes = 64 << 10
	bufferBytes    = 4 << 10
	tlsSessions    = 64 // TLS sessions that each transport can resume
)

// tlsIdentity is what a request trusts, and the certificate that it presents, in PEM.
type tlsIdentity struct{ ca, cert string }

// transportKey is what decides whether two requests may share connections.
type transportKey struct {
	rules    string // the rules in JSON
	identity [sha256.Size]byte
}

// transports holds a transport for each TLS identity. All of them have the current rules: when those change, the
// transports with the old rules are dropped, so that no connection outlives the rules under which it was opened.
type transports struct {
	guard    *guard
	resolver *net.Resolver // nil: the host's

	mu      sync.Mutex
	current *policy.HTTP // the rules of the last request
	rules   string       // the same in JSON
	byKey   map[transportKey]*list.Element
	used    *list.List // *usedTransport, the last used first
}

// usedTransport is a transport in the list of those that were used last.
type usedTransport struct {
	key transportKey
	*http.Transport
}

// newTransports returns an empty set.
func newTransports(g *guard, resolver *net.Resolver) *transports {
	return &transports{guard: g, resolver: resolver, byKey: map[transportKey]*list.Element{}, used: list.New()}
}

// transportFor returns the transport of requests with these rules and this identity. An error means that the identity
// is not valid; it does not contain any of it.
func (t *transports) transportFor(rules *policy.HTTP, id tlsIdentity) (*http.Transport, error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.setRules(rules)
	key := transportKey{rules: t.rules}
	if id != (tlsIdentity{}) {
		key.identity = sha256.Sum256([]byte(id.ca + "\x00" + id.cert))
	}

	if e := t.byKey[key]; e != nil {
		t.used.MoveToFront(e)
		return e.Value.(*usedTransport).Transport, nil
	}

	cfg, err := id.config()
	if err != nil {
		return nil, err
	}

	new := newTransport(&dialer{guard: t.guard, rules: rules, resolver: t.resolver, tls: cfg})
	t.byKey[key] = t.used.PushFront(&usedTransport{key, new})
	for t.used.Len() > maxTransports {
		t.drop(t.used.Back())
	}

	return new, nil
}

// setRules drops all transports if the rules have changed. The caller holds mu.
func (t *transports) setRules(rules *policy.HTTP) {
	if rules == t.current && t.rules != "" {
		return
	}

	b, _ := json.Marshal(rules) // strings can always be encoded
	t.current = rules
	if string(b) == t.rules {
		return
	}

	t.rules = string(b)
	for t.used.Len() > 0 {
		t.drop(t.used.Back())
	}
}

// drop removes a transport. Requests in progress are not affected; their connections are closed when they have been idle.
// The caller holds mu.
func (t *transports) drop(e *list.Element) {
	old := t.used.Remove(e).(*usedTransport)
	delete(t.byKey, old.key)
	old.CloseIdleConnections()
}

// closeIdle closes all connections that no request uses.
func (t *transports) closeIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()

	for e := t.used.Front(); e != nil; e = e.Next() {
		e.Value.(*usedTransport).CloseIdleConnections()
	}
}

// size returns the number of transports.
func (t *transports) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()

	return t.used.Len()
}

// newTransport returns a transport for HTTP/1.1. HTTP/2 would send requests again by itself after several errors. It
// ignores the proxy settings in the environment: a proxy would connect to addresses that the guard has not judged.
func newTransport(d *dialer) *http.Transport {
	var only http.Protocols
	only.SetHTTP1(true)

	return &http.Transport{
		Protocols: &only, DialContext: d.dialPlain, DialTLSContext: d.dialTLS,
		IdleConnTimeout: idleLimit, MaxIdleConns: maxIdle, MaxIdleConnsPerHost: maxIdlePerHost,
		MaxResponseHeaderBytes: maxHeaderBytes, WriteBufferSize: bufferBytes, ReadBufferSize: bufferBytes,
	}
}

// config returns the configuration of TLS.
func (t tlsIdentity) config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, ClientSessionCache: tls.NewLRUClientSessionCache(tlsSessions)}

	if t.ca != "" {
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM([]byte(t.ca)) {
			return nil, errors.New("action.http.tls.ca contains no certificate in PEM")
		}
	}

	if t.cert != "" {
		pair, err := tls.X509KeyPair([]byte(t.cert), []byte(t.cert))
		if err != nil {
			return nil, errors.New("action.http.tls.cert does not contain a certificate and its key in PEM")
		}
		cfg.Certificates = []tls.Certificate{pair}
	}

	return cfg, nil
}

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
