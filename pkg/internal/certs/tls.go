package certs

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// Client returns the configuration of a client that reads PEM files: ca "" is the
// system's CAs, cert and key "" no certificate. A certificate that is replaced
// takes effect with the next connection; a CA does with the next call of Client,
// or at once with Source. Its error is a *FileError.
func Client(ca, cert, key string) (*tls.Config, error) {
	s, err := Open(Files{Cert: cert, Key: key, CA: ca})
	if err != nil {
		return nil, err
	}
	return s.Client(), nil
}

// Client returns the configuration for the next connection as a client: it trusts
// the CA that is there now.
func (s *Source) Client() *tls.Config {
	s.refreshParts()
	c := &tls.Config{MinVersion: tls.VersionTLS13}
	if r := s.roots.value.Load(); r != nil {
		c.RootCAs = r.pool
	}

	if s.pair.value.Load() != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			s.refreshParts()
			return s.pair.value.Load(), nil
		}
	}

	return c
}

// ClientAuth is what a server wants of its clients' certificates. The CA of its
// files is who signs those.
type ClientAuth string

// None asks for no certificate. Optional takes callers without one, and refuses a
// wrong one. Require refuses callers without one.
const (
	None     ClientAuth = "none"
	Optional ClientAuth = "optional"
	Require  ClientAuth = "require"
)

// Server returns the configuration of a server, which needs a certificate. Each
// connection has the certificate and the CA that are there when it begins.
func (s *Source) Server(auth ClientAuth) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			s.refreshParts()
			c := &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, SessionTicketsDisabled: true,
				Certificates: []tls.Certificate{*s.pair.value.Load()},
			}
			if r := s.roots.value.Load(); r != nil && auth != None {
				c.ClientCAs = r.pool
				c.ClientAuth = tls.VerifyClientCertIfGiven
				if auth == Require {
					c.ClientAuth = tls.RequireAndVerifyClientCert
				}
			}

			return c, nil
		},
	}
}

// dialLimit is how long connection and handshake may take.
const dialLimit = 5 * time.Second

// Dialer connects, as net.Dialer's DialContext does.
type Dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// DialTLS makes a Dialer for the DialTLSContext of a http.Transport: it connects
// by dial and speaks TLS as config says at that moment, both within five seconds.
// A nil config is Go's own.
func DialTLS(dial Dialer, config func() *tls.Config) Dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialLimit)
		defer cancel()

		raw, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}

		c := &tls.Config{MinVersion: tls.VersionTLS13}
		if config != nil {
			c = config().Clone()
		}

		if c.ServerName, _, err = net.SplitHostPort(address); err != nil {
			_ = raw.Close()
			return nil, err
		}

		conn := tls.Client(raw, c)
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}

		return conn, nil
	}
}
