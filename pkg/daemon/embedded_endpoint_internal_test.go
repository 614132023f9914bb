package daemon

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/internal/peercerts"
)

// A host whose etcd_endpoints are those of an embedded etcd learns why nothing answers there.
func TestEndpoints_OfAnEmbeddedEtcdAreExplained(t *testing.T) {
	t.Parallel()

	// serve starts a server that demands certificates of clients, as a member does.
	serve := func(caName string) string {
		ca, _, err := certs.NewAuthority(certs.Request{Kind: certs.KindAuthority, Name: caName, For: 100 * 24 * time.Hour, Now: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		pair, err := ca.Issue(certs.Request{Kind: certs.KindNode, Name: "n1", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, For: 10 * 24 * time.Hour, Now: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}

		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.Config.ErrorLog = nil
		s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAnyClientCert}
		s.StartTLS()
		t.Cleanup(s.Close)

		return s.Listener.Addr().String()
	}
	plain := func(answer string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/members" {
				_, _ = w.Write([]byte(answer))
			}
		}))
		t.Cleanup(s.Close)
		return s.Listener.Addr().String()
	}

	peers, other := serve(peercerts.CAName), serve("Example Corp")
	insecure := plain(`[{"id":1,"peerURLs":["http://10.0.0.1:2380"],"name":"n1"}]` + "\n")
	silent := plain("")

	// host.test has only the port of the members.
	e := endpointExplainer{dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == "host.test:2380" {
			address = peers
		}
		if strings.HasPrefix(address, "host.test:") {
			return nil, net.ErrClosed
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}

	for endpoint, want := range map[string]string{
		"https://" + peers:       "https://" + peers + " is a port for members of etcd, not for clients: an etcd that is embedded in agents serves only these agents",
		"http://" + insecure:     "is a port for members of etcd, not for clients: ",
		insecure:                 "is a port for members of etcd, not for clients: ",
		"https://host.test:2379": "the etcd of host.test is embedded in its agent, and has no port for clients: an etcd that is embedded",
		"host.test":              "the etcd of host.test is embedded in its agent",
		"https://host.test:2380": "https://host.test:2380 is a port for members of etcd",
		"https://" + other:       "",
		"http://" + silent:       "",
		"unix:///run/etcd.sock":  "",
		"%":                      "",
	} {
		if got := e.explain(t.Context(), []string{endpoint}); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q", endpoint, got)
		}
	}
}
