package httpaction

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/task"
)

// tlsServer is a configuration of a server, with what a client needs, in PEM.
type tlsServer struct {
	config     *tls.Config
	ca, client string // the authority; a client certificate with its key
}

// newTLSServer creates an authority with a certificate for 127.0.0.1 and one for a client.
func newTLSServer(t testing.TB) tlsServer {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}

	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}

	s := tlsServer{config: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}}
	s.ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	s.client = s.ca + string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))

	return s
}

// secretsOf returns a reader of secrets, by namespace/name.
func secretsOf(all map[string]map[string]string) process.Secrets {
	return func(_ context.Context, namespace, name string) (map[string]string, error) {
		v, ok := all[namespace+"/"+name]
		if !ok {
			return nil, task.ErrNotFound
		}
		return v, nil
	}
}

func TestTLS_RequestsAreSentOnce(t *testing.T) {
	server := newTLSServer(t)
	p := newProbeTLS(t, server.config)
	r := newRunner(t, func(c *Config) { c.Secrets = secretsOf(map[string]map[string]string{"default/api": {"ca": server.ca}}) })

	for i := range 200 {
		for _, path := range []string{"ok", "after-body", "mid-headers"} {
			h := task.HTTP{Method: []string{http.MethodGet, http.MethodPost, http.MethodDelete}[i%3], URL: p.url + "/" + path, TLS: &task.HTTPTLS{CA: "secret:api/ca"}}
			if i%2 == 0 {
				h.Body = strings.Repeat("x", 10_000)
			}

			a, _ := newAttempt(h)
			res := r.RunAttempt(a, process.NewOrders())
			if n := len(p.arrivalsOf(a.Token)); n != 1 || res.Unsent || res.State == task.Succeeded != (path == "ok") {
				t.Errorf("%s %s: %d arrivals, %+v", h.Method, path, n, res)
			}
		}
	}

	// 400 requests end their connection. net/http opens another one to repeat those without a body, which is refused.
	if n := p.connections(); n > 550 {
		t.Errorf("%d connections for 600 requests", n)
	}
}

func TestTLS_UnverifiedCertificatesAreFinal(t *testing.T) {
	server := newTLSServer(t)
	p := newProbeTLS(t, server.config)

	for name, h := range map[string]task.HTTP{
		"unknown authority": {URL: p.url + "/ok"},
		"another name":      {URL: "https://localhost:" + p.port() + "/ok", TLS: &task.HTTPTLS{CA: "secret:api/ca"}},
		"another authority": {URL: p.url + "/ok", TLS: &task.HTTPTLS{CA: "secret:api/other"}},
	} {
		r := newRunner(t, func(c *Config) {
			c.Rules = nil
			c.Secrets = secretsOf(map[string]map[string]string{"default/api": {"ca": server.ca, "other": newTLSServer(t).ca}})
			rulesOf(loopbackAndNames)(c)
		})

		res := run(r, h)
		if res.State != task.Failed || res.Reason != task.ReasonTLS || res.Unsent || !strings.Contains(res.Message, "x509: ") {
			t.Errorf("%s: %+v", name, res)
		}
	}
}

func TestTLS_ClientCertificates(t *testing.T) {
	server := newTLSServer(t)
	server.config.ClientAuth = tls.RequireAnyClientCert
	p := newProbeTLS(t, server.config)
	other := newProbeTLS(t, server.config)
	secrets := map[string]map[string]string{"default/api": {"ca": server.ca, "cert": server.client, "bad": "-----BEGIN x"}}
	r := newRunner(t, func(c *Config) { c.Secrets = secretsOf(secrets) })

	with := &task.HTTPTLS{CA: "secret:api/ca", Cert: "secret:api/cert"}
	if res := run(r, task.HTTP{URL: p.url + "/ok", TLS: with}); res.State != task.Succeeded {
		t.Errorf("with a certificate: %+v", res)
	}

	// The connection of another identity is not used.
	if res := run(r, task.HTTP{URL: p.url + "/ok", TLS: &task.HTTPTLS{CA: "secret:api/ca"}}); res.State == task.Succeeded {
		t.Errorf("without a certificate: %+v", res)
	}

	// Nor does the certificate go to another origin.
	to := p.url + "/redirect?status=302+Found&to=" + other.url + "/ok"
	if res := run(r, task.HTTP{URL: to, TLS: with, Redirects: 1}); res.State == task.Succeeded || len(other.arrivals) > 0 {
		t.Errorf("redirected: %+v", res)
	}

	for _, bad := range []*task.HTTPTLS{{CA: "secret:api/bad"}, {Cert: "secret:api/bad"}, {Cert: "secret:api/ca"}} {
		res := run(r, task.HTTP{URL: p.url + "/ok", TLS: bad})
		if res.Reason != task.ReasonSecret || res.Unsent || strings.Contains(res.Message, "BEGIN") {
			t.Errorf("%+v: %+v", bad, res)
		}
	}
}
