package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// Parse parses all certificates of a PEM file. There must be at least one.
func Parse(b []byte) (list []*x509.Certificate, err error) {
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}

		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("contains a certificate that cannot be parsed: %w", err)
		}

		list = append(list, c)
	}

	if len(list) == 0 {
		return nil, errors.New("contains no PEM certificate")
	}

	return list, nil
}

// Names returns the hosts that a certificate is for: DNS names, then IP addresses.
func Names(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

// End is when a part of the files expires.
type End struct {
	Part string // cert, for the pair, or ca
	At   time.Time
}

// Ends returns when certificate and CA expire: the certificate with the first certificate of its chain, and the CA
// with the last one in its file, because a new CA is added next to the old one.
func (s *Source) Ends() (list []End) {
	if pair := s.pair.value.Load(); pair != nil {
		e := End{Part: PartCert}
		for _, der := range pair.Certificate {
			if c, err := x509.ParseCertificate(der); err == nil && (e.At.IsZero() || c.NotAfter.Before(e.At)) {
				e.At = c.NotAfter
			}
		}

		list = append(list, e)
	}

	if r := s.roots.value.Load(); r != nil {
		e := End{Part: PartCA}
		for _, c := range r.list {
			if c.NotAfter.After(e.At) {
				e.At = c.NotAfter
			}
		}

		list = append(list, e)
	}

	return list
}

// SharesCA reports whether both trust a common CA. CAs of the system do not count.
func (s *Source) SharesCA(other *Source) bool {
	if s == nil || other == nil {
		return false
	}

	a, b := s.roots.value.Load(), other.roots.value.Load()
	if a == nil || b == nil {
		return false
	}

	return slices.ContainsFunc(a.list, func(c *x509.Certificate) bool {
		return slices.ContainsFunc(b.list, c.Equal)
	})
}

// Leaf returns the certificate of this side, or nil if there is none.
func (s *Source) Leaf() *x509.Certificate {
	pair := s.pair.value.Load()
	if pair == nil {
		return nil
	}
	if pair.Leaf != nil {
		return pair.Leaf
	}

	c, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil // cannot happen: X509KeyPair has parsed it
	}

	return c
}

// CanServe returns an error if a certificate cannot be used by a server at host. An empty host is not checked.
func CanServe(c *x509.Certificate, host string) error {
	if !isUsableFor(c, x509.ExtKeyUsageServerAuth) {
		return errors.New("is not valid for servers (extended key usage)")
	}

	if host != "" && c.VerifyHostname(host) != nil {
		names := strings.Join(Names(c), ", ")
		if names == "" {
			names = "no host"
		}
		return fmt.Errorf("is valid for %s, not for %s", names, host)
	}

	return nil
}

// CanCall returns an error if a certificate cannot be used by a client.
func CanCall(c *x509.Certificate) error {
	if !isUsableFor(c, x509.ExtKeyUsageClientAuth) {
		return errors.New("is not valid for clients (extended key usage), which nodes require to call each other")
	}
	return nil
}

// isUsableFor reports whether a certificate allows a use. One without extended key usages allows all.
func isUsableFor(c *x509.Certificate, use x509.ExtKeyUsage) bool {
	return len(c.ExtKeyUsage)+len(c.UnknownExtKeyUsage) == 0 || slices.Contains(c.ExtKeyUsage, use) || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny)
}

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
