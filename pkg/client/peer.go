package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// errServerGone means that the server closed the connection or stopped listening before its owner could be
// determined. Nothing was sent.
var errServerGone = fmt.Errorf("the server has closed the connection: %w", syscall.ECONNRESET)

// untrusted explains why nothing is sent to the program that listens on an address.
type untrusted struct{ why, hint string }

// Error implements error.
func (u *untrusted) Error() string { return u.why }

// riskHint is what to do about a server that cannot be trusted with the token.
const riskHint = "use https://, or the unix socket of the node, or accept the risk with Config.Insecure"

// peerCheck determines which user's program is at the other end of a connection, and whether that user may
// receive the token.
//
// A loopback port or a path does not prove the identity of the server. While the daemon is down, any user of
// the host can listen there and would receive the token. So the client sends data only to a program of root, of
// the caller, or of a user who has the token anyway.
type peerCheck struct {
	own      int   // the caller's uid
	trusted  []int // further uids: see Config.TrustedUsers
	token    bool  // a token will be sent
	insecure bool  // skip the checks
}

// trustsUser reports whether a user may receive the token.
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

// checkTCP checks a connection without TLS before anything is sent.
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
			why:  fmt.Sprintf("%s is on another host, and without TLS anyone on the network path could read the token", remote),
			hint: riskHint}
	}

	uids, err := ownersOfServer(local, remote)
	if errors.Is(err, errServerGone) {
		// The error is that of a failed connection, because nothing was sent and the server may return soon.
		return &net.OpError{Op: "dial", Net: "tcp", Addr: remote, Err: err}
	}

	if err != nil {
		return &untrusted{
			why:  fmt.Sprintf("cannot determine which user listens at %s: %v", remote, err),
			hint: riskHint}
	}

	for _, uid := range uids {
		if !p.trustsUser(uid) {
			return &untrusted{
				why:  fmt.Sprintf("the program that listens at %s belongs to user %d, who could take the token", remote, uid),
				hint: riskHint}
		}
	}

	return nil
}

// newTransport returns a transport that checks the other end of each connection. It never uses a proxy for
// http, because the proxy could read the token.
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

// isLoopback reports whether a host of a URL is the local host by its name or address. checkTCP checks again
// after the name has been resolved.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// failedTrust reports whether a call was not sent because of who listens on the server's address. Then it
// describes that in e.
func (s *server) failedTrust(e *Error, err error) bool {
	var u *untrusted
	if !errors.As(err, &u) {
		return false
	}

	e.Code, e.Message, e.Hint = CodeUntrusted, u.why+"; nothing was sent", u.hint

	return true
}

// failedTLS reports whether a call failed during the TLS handshake. Then it describes in e why, and what to do.
func (s *server) failedTLS(e *Error, err error) bool {
	say := func(hint, format string, args ...any) bool {
		e.Code, e.Hint = CodeTLS, hint
		e.Message = s.base + fmt.Sprintf(format, args...)
		return true
	}

	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var alert *net.OpError
	var verify *tls.CertificateVerificationError
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		return say("use http://, if you trust the network", " speaks plain HTTP, not TLS")
	case errors.As(err, &unknown):
		return say("set the CA that signed its certificate in Config.TLS", " presents a certificate that is not signed by a known CA")
	case errors.As(err, &name):
		return say("use a name in the certificate, or give the node a certificate with this name", " presents a certificate for another host: %v", name)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		if time.Now().Before(invalid.Cert.NotBefore) {
			return say("check the clocks of this host and of the server", " presents a certificate that is valid only from %s", invalid.Cert.NotBefore.UTC().Format(time.RFC3339))
		}
		return say("replace its certificate; the node reloads the file", " presents a certificate that expired on %s", invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &verify):
		return say("", " presents a certificate that cannot be trusted: %v", verify.Err)
	case errors.As(err, &alert) && alert.Op == "remote error":
		return s.refusedBy(say, alert.Err.Error())
	}

	return false
}

// refusedBy explains an alert with which a server has rejected the client's certificate. It always returns
// true.
func (s *server) refusedBy(say func(hint, format string, args ...any) bool, alert string) bool {
	const ours = "set a certificate that its CA signed in Config.TLS"

	switch alert = strings.TrimPrefix(alert, "tls: "); alert {
	case "certificate required":
		return say(ours, " requires a client certificate")
	case "bad certificate", "unknown certificate authority", "unknown certificate", "unsupported certificate":
		return say(ours, " rejects the client certificate: %s", alert)
	case "expired certificate":
		return say("replace the client certificate", " rejects the client certificate: it has expired")
	}

	return say("", " rejects the TLS connection: %s", alert)
}

// wantsTLS reports whether an answer shows that the server expects TLS. Then it describes that in e.
func (s *server) wantsTLS(e *Error, res *http.Response, body []byte) bool {
	if res.StatusCode != http.StatusBadRequest || !bytes.Contains(body, []byte("HTTP request to an HTTPS server")) {
		return false
	}

	e.Code, e.Status = CodeTLS, 0
	e.Message = s.base + " speaks TLS, not plain HTTP"
	e.Hint = "use https://" + strings.TrimPrefix(s.base, "http://")

	return true
}
