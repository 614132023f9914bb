package kv_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
)

// certify writes a CA, and a certificate of it for this host.
func certify(t *testing.T, dir string) (cert, key, ca string) {
	t.Helper()
	pemFile := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	sign := func(c, parent *x509.Certificate, by *ecdsa.PrivateKey) (*ecdsa.PrivateKey, []byte) {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if by == nil {
			by = k
		}
		c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, c, parent, &k.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		return k, der
	}
	root := &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	rootKey, rootDER := sign(root, root, nil)
	leaf := &x509.Certificate{
		Subject: pkix.Name{CommonName: "member"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	leafKey, leafDER := sign(leaf, root, rootKey)
	keyDER, err := x509.MarshalECPrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	return pemFile("cert.pem", "CERTIFICATE", leafDER), pemFile("key.pem", "EC PRIVATE KEY", keyDER), pemFile("ca.pem", "CERTIFICATE", rootDER)
}

// With certificates members speak TLS with each other, and with nobody whose
// certificate another CA has signed. Old revisions go on all of them.
func TestPeers_TrustTheirCAAndNobodyElse(t *testing.T) {
	t.Parallel()
	tr := newTrio(t)
	cert, key, ca := certify(t, tr.dir)
	for n, u := range tr.members {
		tr.members[n] = strings.Replace(u, "http:", "https:", 1)
	}
	config := func(name string) kv.ServerConfig {
		cfg := tr.config(name, false)
		cfg.Peers.CertFile, cfg.Peers.KeyFile, cfg.Peers.CAFile = cert, key, ca
		cfg.CompactionInterval, cfg.CompactionRetention = 50*time.Millisecond, 5
		return cfg
	}
	var wg sync.WaitGroup
	for _, n := range []string{"a", "b"} {
		wg.Go(func() {
			if _, err := tr.begin(config(n)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for range 20 {
		tr.write("a", "k", "v")
	}
	for _, n := range []string{"a", "b"} {
		eventually(t, "old revisions are compacted on "+n, func() bool {
			_, err := tr.running[n].Client().Get(t.Context(), "k", clientv3.WithRev(2))
			return errors.Is(err, rpctypes.ErrCompacted)
		})
	}
	stranger := config("c")
	stranger.Dir = tr.path("stranger")
	other := t.TempDir()
	stranger.Peers.CertFile, stranger.Peers.KeyFile, stranger.Peers.CAFile = certify(t, other)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if s, err := kv.StartServer(ctx, stranger); err == nil {
		_ = s.Close()
		t.Error("a member that another CA has signed is in")
	}
	if _, err := tr.begin(config("c")); err != nil {
		t.Errorf("the right one is not: %v", err)
	}
}
