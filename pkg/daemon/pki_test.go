package daemon_test

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/certs"
)

// pki is a CA for tests with the certificates that it has signed.
type pki struct {
	t   *testing.T
	dir string
	ca  *certs.Authority
}

const aYear = 365 * 24 * time.Hour

func newPKI(t *testing.T) *pki {
	t.Helper()
	p := &pki{t: t, dir: t.TempDir()}
	p.setCA(p.newCA())
	return p
}

// newCA creates a CA, which signs from now on.
func (p *pki) newCA() (pem []byte) {
	p.t.Helper()
	ca, pair, err := certs.NewAuthority(certs.Request{Name: "CA", For: aYear, Now: time.Now()})
	if err != nil {
		p.t.Fatal(err)
	}
	p.ca = ca
	return pair.Cert
}

// setCA makes everybody trust these CAs.
func (p *pki) setCA(pem []byte) {
	p.t.Helper()
	path := p.files("").CA
	if err := os.WriteFile(path+".new", pem, 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pki) caPEM() []byte {
	p.t.Helper()
	b, err := os.ReadFile(p.files("").CA)
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

// issue signs a certificate and replaces the existing one. Without hosts and addresses it is for loopback.
func (p *pki) issue(r certs.Request) certs.Files {
	p.t.Helper()
	if r.Now = time.Now(); r.For == 0 {
		r.For = aYear
	}
	if len(r.Hosts)+len(r.IPs) == 0 {
		r.Hosts, r.IPs = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	pair, err := p.ca.Issue(r)
	if err == nil {
		err = pair.Write(p.dir, r.Name)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return p.files(r.Name)
}

func (p *pki) files(name string) certs.Files {
	cert, key := certs.Paths(p.dir, name)
	ca, _ := certs.Paths(p.dir, "ca")
	return certs.Files{Cert: cert, Key: key, CA: ca}
}

func (p *pki) node(name string) certs.Files {
	return p.issue(certs.Request{Kind: certs.KindNode, Name: name})
}

func (p *pki) client(name string) certs.Files {
	return p.issue(certs.Request{Kind: certs.KindClient, Name: name})
}
