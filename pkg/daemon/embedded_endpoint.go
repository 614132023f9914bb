package daemon

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/peercerts"
)

// servesOnlyMembers says what an embedded etcd is for, to somebody who has expected more.
const servesOnlyMembers = "an etcd that is embedded in agents serves only these agents, its members (at most nine); " +
	"all hosts of a larger cluster need an etcd that runs by itself (docs/how-to/install.md, option 2)"

const (
	// usualPeerPort is the port of the members of an embedded etcd, as the documentation shows it.
	usualPeerPort = "2380"
	// lookTimeout is how long explainEndpoints waits for each address.
	lookTimeout = 2 * time.Second
	// maxMembersAnswer limits what is read of a member's answer.
	maxMembersAnswer = 64 << 10
)

// endpointExplainer finds out why the endpoints of etcd do not answer: perhaps they are those of an embedded etcd.
type endpointExplainer struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// explain returns a sentence if one of the endpoints is a port for members of an embedded etcd, or if there is such a port on its
// host. It returns "" if there is none.
func (e endpointExplainer) explain(ctx context.Context, endpoints []string) string {
	for _, endpoint := range endpoints {
		u, err := url.Parse(endpoint)
		if err != nil || u.Hostname() == "" { // without a scheme, or a socket
			if u, err = url.Parse("//" + endpoint); err != nil || u.Hostname() == "" {
				continue
			}
		}

		if port := cmp.Or(u.Port(), "2379"); e.isForPeers(ctx, net.JoinHostPort(u.Hostname(), port)) {
			return fmt.Sprintf("%s is a port for members of etcd, not for clients: %s", endpoint, servesOnlyMembers)
		}
		if u.Port() != usualPeerPort && e.isForPeers(ctx, net.JoinHostPort(u.Hostname(), usualPeerPort)) {
			return fmt.Sprintf("the etcd of %s is embedded in its agent, and has no port for clients: %s", u.Hostname(), servesOnlyMembers)
		}
	}

	return ""
}

// isForPeers reports whether an address is a port on which members of an etcd talk to each other.
func (e endpointExplainer) isForPeers(ctx context.Context, address string) bool {
	return e.hasPeerCertificate(ctx, address) || e.listsMembers(ctx, address)
}

// hasPeerCertificate reports whether an address has a certificate of the CA that agents create for their members. A name is no
// proof, but nothing is sent to the address, and the answer is only for a message.
func (e endpointExplainer) hasPeerCertificate(ctx context.Context, address string) (found bool) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()

	conn, err := e.dial(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer conn.Close()

	client := tls.Client(conn, &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // only the name of the CA is read
		// The handshake may fail after this, because the member wants a certificate of its client.
		VerifyPeerCertificate: func(chain [][]byte, _ [][]*x509.Certificate) error {
			for _, raw := range chain {
				c, err := x509.ParseCertificate(raw)
				found = found || err == nil && c.Issuer.CommonName == peercerts.CAName
			}
			return nil
		},
	})
	_ = client.HandshakeContext(ctx)

	return found
}

// listsMembers reports whether an address without TLS answers as a member of etcd answers others.
func (e endpointExplainer) listsMembers(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/members", nil)
	if err != nil {
		return false
	}

	transport := &http.Transport{DialContext: e.dial, DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()

	var members []struct {
		PeerURLs []string `json:"peerURLs"`
	}
	err = json.NewDecoder(io.LimitReader(res.Body, maxMembersAnswer)).Decode(&members)

	return err == nil && len(members) > 0 && len(members[0].PeerURLs) > 0
}

// endpointWarnings returns what is wrong with the endpoints of etcd as far as their text shows it.
func (c *Config) endpointWarnings() (warnings []string) {
	for _, endpoint := range c.EtcdEndpoints {
		if u, err := url.Parse(endpoint); err == nil && u.Port() == usualPeerPort {
			warnings = append(warnings, fmt.Sprintf("etcd_endpoints: %s has the usual port of members of etcd, not of clients (2379); %s", endpoint, servesOnlyMembers))
		}
	}

	return warnings
}
