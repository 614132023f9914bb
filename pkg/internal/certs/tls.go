package certs

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// Client returns the configuration of a client that reads PEM files. An empty ca means the system's CAs, an empty
// cert and key no certificate. A replaced certificate takes effect with the next connection. A replaced CA takes
// effect with the next call of Client, or with Source at once. The error is a *FileError.
func Client(ca, cert, key string) (*tls.Config, error) {
	s, err := Open(Files{Cert: cert, Key: key, CA: ca})
	if err != nil {
		return nil, err
	}
	return s.Client(), nil
}

// Client returns the configuration for the next connection as a client. It trusts the current CA.
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

// ClientAuth is what a server requires of its clients' certificates, which the CA of its files must have signed.
type ClientAuth string

// None requests no certificate. Optional accepts callers without one, and rejects an invalid one. Require rejects
// callers without one.
const (
	None     ClientAuth = "none"
	Optional ClientAuth = "optional"
	Require  ClientAuth = "require"
)

// Server returns the configuration of a server. The source must have a certificate. Each connection uses the
// certificate and the CA that are current when it begins.
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

// dialLimit is how long connecting and the handshake may take together.
const dialLimit = 5 * time.Second

// Dialer connects, as net.Dialer's DialContext does.
type Dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// DialTLS returns a Dialer for the DialTLSContext of an http.Transport. It connects with dial, and makes a TLS
// handshake with the configuration that config returns at that moment, both within dialLimit. A nil config is Go's
// default.
func DialTLS(dial Dialer, config func() *tls.Config) Dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialLimit)
		defer cancel()

		raw, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}

		// Use the configuration of this moment, with the host as server name.
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
