package daemon_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/daemon"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestConfig_NamesWhatIsWrongWithTLS(t *testing.T) {
	p := newPKI(t)
	node, client := p.node("n1"), p.client("ann")
	elsewhere := p.issue(certs.Request{Kind: certs.KindNode, Name: "n2", Hosts: []string{"elsewhere"}})
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	api := func(c *daemon.Config) { c.TLSCert, c.TLSKey, c.TLSCA = node.Cert, node.Key, node.CA }
	etcd := func(c *daemon.Config) {
		c.EtcdEndpoints, c.EtcdCA, c.EtcdCert, c.EtcdKey = []string{"https://10.0.0.1:2379"}, node.CA, node.Cert, node.Key
	}
	peers := func(cert, key, host string) func(*daemon.Config) {
		return func(c *daemon.Config) {
			c.Name, c.Embedded, c.EtcdEndpoints, c.EtcdPeerCert, c.EtcdPeerKey, c.EtcdPeerCA = "n1", true, nil, cert, key, node.CA
			c.InitialCluster = map[string]string{"n1": "https://" + host + ":2380", "n2": "https://10.0.0.2:2380"}
		}
	}
	type change = func(*daemon.Config)
	for _, tc := range []struct {
		want string // the beginning of the error; "": none
		do   []change
	}{
		{"", []change{api}},
		{"", []change{api, func(c *daemon.Config) { c.Listen = "0.0.0.0:7070" }}},
		{"", []change{api, func(c *daemon.Config) { c.TLSClientAuth = "require" }}},
		{"", []change{api, func(c *daemon.Config) { c.Advertise = "https://localhost:7070" }}},
		{"", []change{func(c *daemon.Config) { c.TLSCA = node.CA }}}, // before the other nodes have TLS
		{"", []change{etcd}},
		{"", []change{etcd, func(c *daemon.Config) { c.EtcdUser, c.EtcdPasswordFile = "u", password }}},
		{"", []change{etcd, func(c *daemon.Config) { c.EtcdCert, c.EtcdKey, c.EtcdCA = "", "", "" }}},
		{"", []change{func(c *daemon.Config) { c.EtcdUser, c.EtcdPassword = "u", "p" }}},

		{"", []change{peers(node.Cert, node.Key, "127.0.0.1")}},
		{"etcd_peer_cert: " + node.Cert + " is valid for localhost, 127.0.0.1, not for 10.0.0.1", []change{peers(node.Cert, node.Key, "10.0.0.1")}},
		{"etcd_peer_cert: " + client.Cert + " is not valid for servers", []change{peers(client.Cert, client.Key, "127.0.0.1")}},

		{"tls_key: is required with tls_cert", []change{func(c *daemon.Config) { c.TLSCert = node.Cert }}},
		{"tls_cert: is required with tls_key", []change{func(c *daemon.Config) { c.TLSKey = node.Key }}},
		{"tls_key: " + client.Key + ": is not the key of", []change{api, func(c *daemon.Config) { c.TLSKey = client.Key }}},
		{"tls_cert: /none: no such file", []change{api, func(c *daemon.Config) { c.TLSCert = "/none" }}},
		{"tls_ca: " + node.Key + ": contains no PEM certificate", []change{api, func(c *daemon.Config) { c.TLSCA = node.Key }}},
		{"tls_cert: " + client.Cert + " is not valid for servers", []change{api, func(c *daemon.Config) { c.TLSCert, c.TLSKey = client.Cert, client.Key }}},
		{"tls_cert: " + elsewhere.Cert + " is valid for elsewhere, not for 127.0.0.1", []change{api, func(c *daemon.Config) { c.TLSCert, c.TLSKey = elsewhere.Cert, elsewhere.Key }}},
		{"tls_cert: " + node.Cert + " is valid for localhost, 127.0.0.1, not for web1", []change{api, func(c *daemon.Config) { c.Advertise = "https://web1:7070" }}},
		{"tls_client_auth: \"always\" is not one of", []change{func(c *daemon.Config) { c.TLSClientAuth = "always" }}},
		{"tls_cert: is required with tls_client_auth", []change{func(c *daemon.Config) { c.TLSClientAuth = "optional" }}},
		{"tls_ca: is required with tls_client_auth", []change{api, func(c *daemon.Config) { c.TLSCA, c.TLSClientAuth = "", "require" }}},
		{"advertise: \"http://localhost:7070\" must begin with https://", []change{api, func(c *daemon.Config) { c.Advertise = "http://localhost:7070" }}},
		{"advertise: \"https://localhost:7070\" must begin with http://", []change{func(c *daemon.Config) { c.Advertise = "https://localhost:7070" }}},
		{"listen: \"0.0.0.0:7070\" is reachable from other hosts: set tls_cert", []change{func(c *daemon.Config) { c.Listen = "0.0.0.0:7070" }}},

		{"etcd_endpoints: are all https, all http", []change{etcd, func(c *daemon.Config) { c.EtcdEndpoints = append(c.EtcdEndpoints, "http://10.0.0.2:2379") }}},
		{"etcd_ca: requires endpoints with https", []change{func(c *daemon.Config) { c.EtcdCA = node.CA }}},
		{"etcd_key: is required with etcd_cert", []change{etcd, func(c *daemon.Config) { c.EtcdKey = "" }}},
		{"etcd_ca: /none: no such file", []change{etcd, func(c *daemon.Config) { c.EtcdCA = "/none" }}},
		{"etcd_password_file: is required with etcd_user", []change{func(c *daemon.Config) { c.EtcdUser = "u" }}},
		{"etcd_password_file: cannot be combined with etcd_password", []change{func(c *daemon.Config) { c.EtcdUser, c.EtcdPassword, c.EtcdPasswordFile = "u", "p", password }}},
		{"etcd_password_file: /none: no such file", []change{func(c *daemon.Config) { c.EtcdUser, c.EtcdPasswordFile = "u", "/none" }}},
		{"etcd_user: is required with a password", []change{func(c *daemon.Config) { c.EtcdPasswordFile = password }}},
		{"etcd_user: applies only to an etcd at etcd_endpoints", []change{func(c *daemon.Config) { c.Embedded, c.EtcdEndpoints, c.EtcdUser = true, nil, "u" }}},
	} {
		c := daemon.Defaults()
		c.EtcdEndpoints = []string{"http://127.0.0.1:2379"}
		for _, do := range tc.do {
			do(&c)
		}
		err := c.Validate()
		var e *task.Error
		if tc.want == "" && err != nil || tc.want != "" && (!errors.As(err, &e) || !strings.HasPrefix(err.Error(), tc.want)) {
			t.Errorf("got %v, want %q", err, tc.want)
		}
	}
}

// etcdctl accepts host:port as an endpoint. It is used with TLS if there are files for TLS.
func TestConfig_CompletesEndpointsWithoutScheme(t *testing.T) {
	dir, ca := t.TempDir(), newPKI(t).node("n1").CA
	for _, tc := range []struct {
		endpoint, ca, want string
	}{
		{"127.0.0.1:2379", "", "http://127.0.0.1:2379"},
		{"etcd-1:2379", "", "http://etcd-1:2379"},
		{"[::1]:2379", "", "http://[::1]:2379"},
		{"etcd-1:2379", ca, "https://etcd-1:2379"},
		{"https://etcd-1:2379", ca, "https://etcd-1:2379"},
		{"unix:///run/etcd.sock", "", "unix:///run/etcd.sock"},
		{"etcd-1", "", ""},
		{":2379", "", ""},
		{"etcd-1:", "", ""},
		{"etcd-1:port", "", ""},
		{"ftp://etcd-1:2379", "", ""},
		{"etcd-1:2379/path", "", ""},
	} {
		c := daemon.Defaults()
		c.DataDir, c.EtcdCA = dir, tc.ca
		given := []string{tc.endpoint}
		c.EtcdEndpoints = given
		err := c.Validate()
		if tc.want == "" && (err == nil || !strings.HasPrefix(err.Error(), "etcd_endpoints: ")) || tc.want != "" && (err != nil || c.EtcdEndpoints[0] != tc.want) {
			t.Errorf("%s: %v, %v", tc.endpoint, c.EtcdEndpoints, err)
		}
		if given[0] != tc.endpoint {
			t.Errorf("the caller's list is changed: %v", given)
		}
	}
}
