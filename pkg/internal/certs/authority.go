// Package certs provides what Carillon needs for TLS: certificates and CAs from PEM files that take effect when the
// files are replaced, the configurations of both ends, and a small CA for users who have none.
//
// Files are read before each handshake, so a replaced file takes effect with the next connection. Open connections
// are not affected. A new pair takes effect when certificate and key match. Until then, and permanently if they
// never match, the previous pair is used. The same applies to the CA. Look reports such problems.
//
// All ends use TLS 1.3 only, because they are Carillon's own, or etcd's. Sessions are not resumed, so that each
// connection is checked against the current CA.
package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Kind is the purpose of a certificate.
type Kind string

// A node is a server of the API and of etcd, and a client of both. A client is only a client. An authority signs
// the others.
const (
	KindNode      Kind = "node"
	KindClient    Kind = "client"
	KindAuthority Kind = "ca"
)

// KindOf returns the purpose of a certificate, or "" if it has none of these.
func KindOf(c *x509.Certificate) Kind {
	switch {
	case c.IsCA:
		return KindAuthority
	case isUsableFor(c, x509.ExtKeyUsageServerAuth):
		return KindNode
	case isUsableFor(c, x509.ExtKeyUsageClientAuth):
		return KindClient
	}

	return ""
}

// Request describes a certificate to issue.
type Request struct {
	Kind  Kind
	Name  string // becomes the common name
	Hosts []string
	IPs   []net.IP
	// For is how long the certificate is valid. Its validity begins an hour before Now, because clocks differ, and
	// never exceeds that of its signer.
	For time.Duration
	Now time.Time
}

// Pair is a certificate and its key, both in PEM.
type Pair struct{ Cert, Key []byte }

// Authority signs certificates. It is minimal: it keeps no record of what it has signed, and cannot revoke
// anything.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// NewAuthority creates a self-signed authority.
func NewAuthority(r Request) (*Authority, Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, Pair{}, err
	}
	return newAuthority(r, key)
}

// Renewed returns the same authority with a later end. Its certificates stay valid, because the key is the same.
func (a *Authority) Renewed(now time.Time) (*Authority, Pair, error) {
	return newAuthority(Request{Name: a.cert.Subject.CommonName, For: a.cert.NotAfter.Sub(a.cert.NotBefore), Now: now}, a.key)
}

// newAuthority creates an authority with the given key.
func newAuthority(r Request, key crypto.Signer) (*Authority, Pair, error) {
	t, err := newTemplate(r)
	if err != nil {
		return nil, Pair{}, err
	}

	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign

	return signCertificate(t, t, key, key)
}

// ReadAuthority parses an authority from PEM.
func ReadAuthority(p Pair) (*Authority, error) {
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		return nil, err
	}

	list, err := Parse(p.Cert)
	if err != nil {
		return nil, err
	}

	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !list[0].IsCA {
		return nil, errors.New("is not a CA")
	}

	return &Authority{list[0], key}, nil
}

// Issue generates a key and signs a certificate for it.
func (a *Authority) Issue(r Request) (Pair, error) {
	if !r.Now.Before(a.cert.NotAfter) {
		return Pair{}, fmt.Errorf("the CA expired on %s: renew it", a.cert.NotAfter.UTC().Format(time.DateOnly))
	}

	t, err := newTemplate(r)
	if err != nil {
		return Pair{}, err
	}

	if t.NotAfter.After(a.cert.NotAfter) {
		t.NotAfter = a.cert.NotAfter
	}

	// Every certificate is for clients. Those of nodes are also for servers.
	t.KeyUsage, t.BasicConstraintsValid = x509.KeyUsageDigitalSignature, true
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if r.Kind == KindNode {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		t.DNSNames, t.IPAddresses = r.Hosts, r.IPs
	}

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}

	_, p, err := signCertificate(t, a.cert, key, a.key)

	return p, err
}

// Again returns the request for a certificate with the same properties as c.
func Again(c *x509.Certificate, now time.Time) Request {
	return Request{Kind: KindOf(c), Name: c.Subject.CommonName, Hosts: c.DNSNames, IPs: c.IPAddresses, For: c.NotAfter.Sub(c.NotBefore), Now: now}
}

// newTemplate returns the common part of all certificates, with a random serial number.
func newTemplate(r Request) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}

	begin := r.Now.Add(-time.Hour).Truncate(time.Second)
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: r.Name}, NotBefore: begin, NotAfter: begin.Add(r.For)}, nil
}

// signCertificate signs a certificate for key with the key by.
func signCertificate(t, parent *x509.Certificate, key, by crypto.Signer) (*Authority, Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key.Public(), by)
	if err != nil {
		return nil, Pair{}, err
	}

	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, Pair{}, err
	}

	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, Pair{}, err
	}

	return &Authority{c, key}, Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}, nil
}

// Paths returns where the pair with a name is stored in a directory.
func Paths(dir, name string) (cert, key string) {
	return filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
}

// Write stores a pair in a directory, which it creates: as NAME.pem, and NAME-key.pem, which only its owner may
// read. Each file is replaced atomically, first the key. Between the two, they do not match.
func (p Pair) Write(dir, name string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}

	cert, key := Paths(dir, name)
	if err := WriteFile(key, p.Key, 0o600); err != nil {
		return err
	}

	return WriteFile(cert, p.Cert, 0o644)
}

// ReadPair reads what Write has stored.
func ReadPair(dir, name string) (p Pair, err error) {
	cert, key := Paths(dir, name)
	if p.Cert, err = os.ReadFile(cert); err == nil {
		p.Key, err = os.ReadFile(key)
	}
	return p, err
}

// WriteFile replaces a file atomically, and syncs it.
func WriteFile(path string, b []byte, mode os.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}

	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()

	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}

	return os.Rename(f.Name(), path)
}
