package certs_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/certs"
)

// certDir is a directory with a CA and certificates that it has signed.
type certDir struct {
	t   *testing.T
	dir string
	ca  *certs.Authority
}

const year = 365 * 24 * time.Hour

func newCertDir(t *testing.T) *certDir {
	h := &certDir{t: t, dir: t.TempDir()}
	h.newCA()
	return h
}

func (d *certDir) newCA() {
	d.t.Helper()
	ca, pair, err := certs.NewAuthority(certs.Request{Name: "CA", For: year, Now: time.Now()})
	if err == nil {
		err = pair.Write(d.dir, "ca")
	}

	if err != nil {
		d.t.Fatal(err)
	}

	d.ca = ca
}

func (d *certDir) pair(kind certs.Kind, cn string) certs.Pair {
	d.t.Helper()
	p, err := d.ca.Issue(certs.Request{Kind: kind, Name: cn, Hosts: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, For: year, Now: time.Now()})
	if err != nil {
		d.t.Fatal(err)
	}

	return p
}

func (d *certDir) issue(kind certs.Kind, file, cn string) {
	d.t.Helper()
	if err := d.pair(kind, cn).Write(d.dir, file); err != nil {
		d.t.Fatal(err)
	}
}

func (d *certDir) files(name string) certs.Files {
	cert, key := certs.Paths(d.dir, name)
	ca, _ := certs.Paths(d.dir, "ca")
	return certs.Files{Cert: cert, Key: key, CA: ca}
}

func (d *certDir) open(name string) *certs.Source {
	d.t.Helper()
	s, err := certs.Open(d.files(name))
	if err != nil {
		d.t.Fatal(err)
	}

	return s
}

// serve answers connections with what the server knows about the client, until the test ends.
func (d *certDir) serve(s *certs.Source, auth certs.ClientAuth) (address string) {
	d.t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", s.Server(auth))
	if err != nil {
		d.t.Fatal(err)
	}

	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}

			conn := c.(*tls.Conn)
			if conn.Handshake() == nil {
				who := "nobody"
				if peers := conn.ConnectionState().PeerCertificates; len(peers) > 0 {
					who = peers[0].Subject.CommonName
				}
				_, _ = io.WriteString(conn, who)
			}

			_ = conn.Close()
		}
	}()

	d.t.Cleanup(func() { _ = l.Close(); <-done })

	return l.Addr().String()
}

// call connects. It returns the names of the server and of the client as the other side sees them.
func call(t *testing.T, address string, config func() *tls.Config) (server, client string, err error) {
	t.Helper()
	c, err := certs.DialTLS((&net.Dialer{}).DialContext, config)(t.Context(), "tcp", address)
	if err != nil {
		return "", "", err
	}

	defer c.Close()

	b, err := io.ReadAll(c)

	return c.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName, string(b), err
}

func TestSource_AReplacedCertificateCountsForTheNextConnection(t *testing.T) {
	h := newCertDir(t)
	h.issue(certs.KindNode, "n1", "before")
	h.issue(certs.KindClient, "ann", "ann")
	server, client := h.open("n1"), h.open("ann")
	at := h.serve(server, certs.Require)
	check := func(wantServer, wantClient string) {
		t.Helper()
		if s, c, err := call(t, at, client.Client); s != wantServer || c != wantClient || err != nil {
			t.Errorf("%q, %q, %v; want %q, %q", s, c, err, wantServer, wantClient)
		}
	}

	check("before", "ann")
	h.issue(certs.KindNode, "n1", "after")
	check("after", "ann")
	h.issue(certs.KindClient, "ann", "ann's new one")
	check("after", "ann's new one")
	// Another CA: as soon as both files are there, a server that it has signed is trusted.
	h.newCA()
	h.issue(certs.KindNode, "n1", "of another CA")
	h.issue(certs.KindClient, "ann", "ann")
	check("of another CA", "ann")
}

// maxHandshakeWait is how long a handshake waits for another one that reads the files. Then it uses the previous
// content, as with a file system that does not respond.
const maxHandshakeWait = 500 * time.Millisecond

// What is written before a connection begins takes effect for it, even if other connections begin at the same time
// and have read the files earlier.
func TestSource_WhatIsWrittenCountsBesideOthers(t *testing.T) {
	h := newCertDir(t)
	h.issue(certs.KindClient, "ann", "ann")
	path := h.files("ann").CA
	var contents [2][]byte
	var pools [2]*x509.CertPool
	for i := range contents {
		h.newCA()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}

		contents[i], pools[i] = b, x509.NewCertPool()
		pools[i].AppendCertsFromPEM(b)
	}

	s := h.open("ann")
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()

	for range 4 {
		others.Go(func() {
			for ctx.Err() == nil {
				s.Client()
			}
		})
	}

	for i := range 500 {
		if err := os.WriteFile(path, contents[i%2], 0o600); err != nil {
			t.Fatal(err)
		}

		for {
			began := time.Now()

			if s.Client().RootCAs.Equal(pools[i%2]) {
				break
			}

			if time.Since(began) < maxHandshakeWait {
				t.Fatalf("the former CA counts after the file was written, at change %d", i)
			}
		}
	}
}

func TestSource_KeepsTheFormerWhenFilesDoNotFit(t *testing.T) {
	h := newCertDir(t)
	h.issue(certs.KindNode, "n1", "first")
	s := h.open("n1")
	at := h.serve(s, certs.None)
	client := h.open("n1")
	other := h.pair(certs.KindNode, "second")
	f := h.files("n1")

	whole, err := os.ReadFile(f.Cert)
	if err != nil {
		t.Fatal(err)
	}

	for name, b := range map[string][]byte{"of another key": other.Cert, "half written": whole[:len(whole)/2], "empty": nil, "nonsense": []byte("x")} {
		if err := os.WriteFile(f.Cert, b, 0o600); err != nil {
			t.Fatal(err)
		}

		if who, _, err := call(t, at, client.Client); who != "first" || err != nil {
			t.Errorf("%s: %q, %v", name, who, err)
		}
	}

	if err := os.Remove(f.Key); err != nil {
		t.Fatal(err)
	}

	if who, _, err := call(t, at, client.Client); who != "first" || err != nil {
		t.Errorf("no key: %q, %v", who, err)
	}

	if err := other.Write(h.dir, "n1"); err != nil {
		t.Fatal(err)
	}

	if who, _, err := call(t, at, client.Client); who != "second" || err != nil {
		t.Errorf("when they fit: %q, %v", who, err)
	}

	ca, _ := certs.Paths(h.dir, "ca")
	if err := os.WriteFile(ca, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}

	if _, _, err := call(t, at, client.Client); err != nil {
		t.Errorf("a broken CA: %v", err)
	}
}

func TestSource_TellsOnceAndOnlyOfWhatLasts(t *testing.T) {
	h := newCertDir(t)
	h.issue(certs.KindNode, "n1", "first")
	next := h.pair(certs.KindNode, "second")
	cert := h.files("n1").Cert
	synctest.Test(t, func(t *testing.T) {
		s := h.open("n1")
		if got := s.Look(); len(got) != 0 {
			t.Errorf("at first: %v", got)
		}

		if err := os.WriteFile(cert, next.Cert, 0o600); err != nil {
			t.Fatal(err)
		}

		if got := s.Look(); len(got) != 0 {
			t.Errorf("of a pair in the making: %v", got)
		}

		time.Sleep(10 * time.Second)

		if got := s.Look(); len(got) != 1 || got[0].Part != certs.PartCert || !strings.Contains(got[0].Err.Error(), "is not the key of") {
			t.Errorf("of one that does not fit: %v", got)
		}

		time.Sleep(10 * time.Second)

		if got := s.Look(); len(got) != 0 {
			t.Errorf("again: %v", got)
		}

		if err := next.Write(h.dir, "n1"); err != nil {
			t.Fatal(err)
		}

		if got := s.Look(); len(got) != 1 || got[0].Err != nil {
			t.Errorf("of one that fits: %v", got)
		}

		if got := s.Look(); len(got) != 0 {
			t.Errorf("again: %v", got)
		}
	})
}

func TestServer_JudgesClientsByItsCA(t *testing.T) {
	h, strangers := newCertDir(t), newCertDir(t)
	h.issue(certs.KindNode, "n1", "n1")
	h.issue(certs.KindClient, "ann", "ann")
	strangers.issue(certs.KindClient, "eve", "eve")
	ca := h.files("n1").CA
	eve := strangers.files("eve")
	eve.CA = ca
	for _, c := range []struct {
		auth  certs.ClientAuth
		files certs.Files
		want  string // "": rejected
	}{
		{certs.None, certs.Files{CA: ca}, "nobody"},
		{certs.None, h.files("ann"), "nobody"}, // no certificate is requested
		{certs.Optional, certs.Files{CA: ca}, "nobody"},
		{certs.Optional, h.files("ann"), "ann"},
		{certs.Optional, eve, ""},
		{certs.Require, certs.Files{CA: ca}, ""},
		{certs.Require, h.files("ann"), "ann"},
		{certs.Require, h.files("n1"), "n1"}, // nodes call each other
		{certs.Require, eve, ""},
	} {
		s, err := certs.Open(c.files)
		if err != nil {
			t.Fatal(err)
		}

		at := h.serve(h.open("n1"), c.auth)
		_, who, err := call(t, at, s.Client)
		if who != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s, %s: %q, %v", c.auth, filepath.Base(c.files.Cert), who, err)
		}
	}
}

func TestClient_JudgesServers(t *testing.T) {
	h, strangers := newCertDir(t), newCertDir(t)
	h.issue(certs.KindNode, "n1", "n1")
	h.issue(certs.KindClient, "ann", "ann")

	elsewhere, err := h.ca.Issue(certs.Request{Kind: certs.KindNode, Name: "x", Hosts: []string{"elsewhere"}, For: year, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}

	if err := elsewhere.Write(h.dir, "x"); err != nil {
		t.Fatal(err)
	}

	ended, err := h.ca.Issue(certs.Request{Kind: certs.KindNode, Name: "y", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, For: time.Minute, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}

	if err := ended.Write(h.dir, "y"); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		server, ca string
		refused    any
	}{
		{"n1", h.files("").CA, nil},
		{"n1", strangers.files("").CA, new(x509.UnknownAuthorityError)},
		{"n1", "", new(x509.UnknownAuthorityError)},
		{"x", h.files("").CA, new(x509.HostnameError)},
		{"y", h.files("").CA, new(x509.CertificateInvalidError)},
		{"ann", h.files("").CA, new(x509.HostnameError)}, // a client certificate is for no host
	} {
		config, err := certs.Client(c.ca, "", "")
		if err != nil {
			t.Fatal(err)
		}

		_, _, err = call(t, h.serve(h.open(c.server), certs.None), func() *tls.Config { return config })
		if c.refused == nil && err != nil || c.refused != nil && !errors.As(err, c.refused) {
			t.Errorf("%s by %s: %v", c.server, c.ca, err)
		}
	}
}

func TestOpen_NamesTheFile(t *testing.T) {
	h := newCertDir(t)
	h.issue(certs.KindNode, "n1", "n1")
	h.issue(certs.KindNode, "n2", "n2")

	n1, n2 := h.files("n1"), h.files("n2")
	for part, f := range map[string]certs.Files{
		certs.PartKey:  {Cert: n1.Cert, Key: n2.Key},
		certs.PartCert: {Cert: n1.Key, Key: n1.Key},
		certs.PartCA:   {CA: n1.Key},
	} {
		var fault *certs.FileError
		if _, err := certs.Open(f); !errors.As(err, &fault) || fault.Part != part {
			t.Errorf("%s: %v", part, err)
		}
	}

	for part, f := range map[string]certs.Files{
		certs.PartKey:  {Cert: n1.Cert, Key: "/none"},
		certs.PartCert: {Cert: "/none", Key: n1.Key},
		certs.PartCA:   {CA: "/dev/zero"},
	} {
		var fault *certs.FileError
		if _, err := certs.Open(f); !errors.As(err, &fault) || fault.Part != part {
			t.Errorf("%s: %v", part, err)
		}
	}

	if _, err := certs.Open(certs.Files{Cert: n1.Cert}); err == nil {
		t.Error("a certificate without its key")
	}
}

// A renewed CA is the same CA: what it has signed stays valid. It can be renewed before it expires.
func TestAuthority_RenewedIsTheSame(t *testing.T) {
	h := newCertDir(t)
	before := h.pair(certs.KindNode, "n1")

	renewed, pair, err := h.ca.Renewed(time.Now().Add(year / 2)) // before it expires
	if err != nil {
		t.Fatal(err)
	}

	read, err := certs.ReadAuthority(pair)
	if err != nil {
		t.Fatal(err)
	}

	ca, err := certs.Parse(pair.Cert)
	if err != nil {
		t.Fatal(err)
	}

	pool := x509.NewCertPool()
	pool.AddCert(ca[0])

	after, err := read.Issue(certs.Request{Kind: certs.KindNode, Name: "n1", Hosts: []string{"localhost"}, For: 10 * year, Now: time.Now().Add(year / 2)})
	if err != nil {
		t.Fatal(err)
	}

	for _, p := range []certs.Pair{before, after} {
		c, err := certs.Parse(p.Cert)
		if err != nil {
			t.Fatal(err)
		}

		for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			if _, err := c[0].Verify(x509.VerifyOptions{Roots: pool, DNSName: "localhost", CurrentTime: time.Now().Add(year * 3 / 4), KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
				t.Error(err)
			}
		}

		if c[0].NotAfter.After(ca[0].NotAfter) {
			t.Errorf("the certificate outlives its CA")
		}
	}

	if _, err := renewed.Issue(certs.Request{Kind: certs.KindNode, Name: "n1", For: year, Now: time.Now().Add(3 * year)}); err == nil {
		t.Error("a CA that has ended signs")
	}
}
