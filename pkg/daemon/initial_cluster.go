package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/internal/peercerts"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
	"github.com/carillonhq/carillon/pkg/task"
)

// The values of initial_cluster_state.
const (
	clusterNew      = "new"
	clusterExisting = "existing"
)

// validatePeers checks the settings of an embedded etcd with several members.
func (c *Config) validatePeers() error {
	if c.InitialClusterState != clusterNew && c.InitialClusterState != clusterExisting {
		return task.NoneOf(task.CodeBadValue, "initial_cluster_state", c.InitialClusterState, "new", "existing")
	}

	if len(c.InitialCluster) == 0 {
		// Without initial_cluster, the settings for peers have no meaning. Reject them rather than ignore them.
		for field, v := range map[string]string{"etcd_listen_peer": c.EtcdListenPeer, "etcd_peer_cert": c.EtcdPeerCert,
			"etcd_peer_key": c.EtcdPeerKey, "etcd_peer_ca": c.EtcdPeerCA} {
			if v != "" {
				return task.Invalid(task.CodeBadValue, field, "requires initial_cluster; it applies only to an embedded etcd of several agents")
			}
		}

		if c.InsecurePeers {
			return task.Invalid(task.CodeBadValue, "insecure_peers", "requires initial_cluster; it applies only to an embedded etcd of several agents")
		}
		if c.InitialClusterState == clusterExisting {
			return task.Invalid(task.CodeRequired, "initial_cluster", "is required to join an existing cluster")
		}

		return nil
	}

	if !c.Embedded {
		return task.Invalid(task.CodeBadValue, "initial_cluster", "requires embedded")
	}

	some := c.EtcdPeerCert != "" || c.EtcdPeerKey != "" || c.EtcdPeerCA != ""
	if some && (c.EtcdPeerCert == "" || c.EtcdPeerKey == "" || c.EtcdPeerCA == "") {
		return task.Invalid(task.CodeRequired, "etcd_peer_cert", "set all of etcd_peer_cert, etcd_peer_key and etcd_peer_ca, or none of them")
	}
	if some && c.InsecurePeers {
		return task.Invalid(task.CodeBadValue, "insecure_peers", "cannot be combined with etcd_peer_cert")
	}

	scheme := "https"
	if c.InsecurePeers {
		scheme = "http"
	}

	if err := c.validateMembers(scheme); err != nil {
		return err
	}

	return c.validateListenPeer(scheme)
}

// validateMembers checks the names and URLs in initial_cluster.
func (c *Config) validateMembers(scheme string) error {
	if c.InitialCluster[c.Name] == "" {
		return task.Invalid(task.CodeRequired, "initial_cluster", "does not contain this node, %s: add `%s=%s://HOST:PORT`, and the same for the other nodes; %s",
			task.Quote(c.Name), c.Name, scheme, servesOnlyMembers)
	}

	if n := len(c.InitialCluster); n < 2 || n > 9 {
		return task.Invalid(task.CodeOutOfRange, "initial_cluster", "%d is not a number of members from 2 to 9: 3 members tolerate one failure, 5 tolerate two; a single member needs no initial_cluster", n)
	}

	at := map[string]string{}
	for name, v := range c.InitialCluster {
		if err := task.CheckName("initial_cluster", name); err != nil {
			return err
		}

		u, err := peerURL(v, scheme)
		if err != nil {
			return task.Invalid(task.CodeBadValue, "initial_cluster", "%s: %s %v", name, task.Quote(v), err)
		}
		if other, taken := at[u.Host]; taken {
			return task.Invalid(task.CodeBadValue, "initial_cluster", "%s and %s have the same address, %s", min(name, other), max(name, other), u.Host)
		}

		at[u.Host] = name
	}

	return nil
}

// validateListenPeer checks the address that the peer listener will bind, and stores it in EtcdListenPeer. So
// the listener binds the address that was checked, even if the name resolves to another one later.
func (c *Config) validateListenPeer(scheme string) error {
	field, value := "initial_cluster", c.InitialCluster[c.Name]
	if c.EtcdListenPeer != "" {
		field, value = "etcd_listen_peer", c.EtcdListenPeer
	}

	u, err := peerURL(value, scheme)
	if err != nil {
		return task.Invalid(task.CodeBadValue, field, "%s %v", task.Quote(value), err)
	}

	host := u.Hostname()
	isName := net.ParseIP(host) == nil && host != "localhost"
	if isName && c.EtcdListenPeer != "" {
		return task.Invalid(task.CodeBadValue, field, "%s must contain the IP of an interface, or 0.0.0.0, instead of a name", task.Quote(value))
	}

	addr, err := embedded.ListenAddress(host)
	if err != nil {
		return nil // the name may resolve when the listener tries again
	}

	if isName && addr.IsLoopback() {
		return task.Invalid(task.CodeBadValue, field,
			"%s resolves to %s on this host, which other hosts cannot reach: set etcd_listen_peer to the IP to listen on, or change /etc/hosts", task.Quote(host), addr)
	}

	c.EtcdListenPeer = scheme + "://" + net.JoinHostPort(addr.String(), u.Port())

	return nil
}

// peerURL parses a peer URL, which must have the given scheme, a host and a port, and nothing else.
func peerURL(v, scheme string) (*url.URL, error) {
	u, err := url.Parse(v)
	if err != nil || u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.User != nil || u.RawQuery != "" {
		return nil, fmt.Errorf("is not a URL such as %s://10.0.0.1:2380", scheme)
	}

	if u.Scheme != scheme && scheme == "https" {
		return nil, errors.New("does not begin with https: the agents create the certificates (carillon cluster join-token); without TLS, anyone who can reach the port " +
			"can run commands as root; to accept this risk, use --insecure-peers")
	}

	if u.Scheme != scheme {
		return nil, errors.New("does not begin with http, although insecure_peers disables TLS")
	}

	return u, nil
}

// peersConfig returns the configuration of the embedded etcd's peers, or nil if it is the only member.
func (c *Config) peersConfig() *embedded.Peers {
	if len(c.InitialCluster) == 0 {
		return nil
	}

	return &embedded.Peers{
		Members: c.InitialCluster, Listen: c.EtcdListenPeer, Join: c.InitialClusterState == clusterExisting,
		CertFile: c.EtcdPeerCert, KeyFile: c.EtcdPeerKey, CAFile: c.EtcdPeerCA,
	}
}

// members is a setting of names and URLs, such as "n1=http://h1:2380,n2=http://h2:2380".
// Set replaces the list.
type members map[string]string

func (m *members) Type() string   { return "name=url,…" }
func (m *members) String() string { return (*pairs)(m).String() }

// Set parses the list. Each name may occur once.
func (m *members) Set(s string) error {
	var all list
	_ = all.Set(s) // list.Set never fails

	fresh := members{}
	for _, one := range all {
		var p pairs
		if err := p.Set(one); err != nil {
			return fmt.Errorf("%q is not name=url", one)
		}

		for name, v := range p {
			if _, twice := fresh[name]; twice {
				return fmt.Errorf("%s is listed twice", name)
			}
			fresh[name] = v
		}
	}

	*m = fresh

	return nil
}

const (
	// peerCertEvery is the interval at which a member without a certificate looks for a join token.
	peerCertEvery = time.Second
	// peerDialTimeout is how long the first member waits for a connection to each other member.
	peerDialTimeout = 2 * time.Second
)

// hasOwnPeerCerts reports whether the agents create the certificates of the etcd members, which is the default.
func (c *Config) hasOwnPeerCerts() bool {
	return len(c.InitialCluster) > 0 && !c.InsecurePeers && c.EtcdPeerCert == ""
}

// firstMember returns the member that creates the CA of a new cluster. All members have to agree on it before they
// can communicate, so it is the one with the first name in alphabetical order.
func (c *Config) firstMember() string { return slices.Min(slices.Collect(maps.Keys(c.InitialCluster))) }

// makesPeerCA reports whether this node creates the CA.
func (c *Config) makesPeerCA() bool {
	return c.Name == c.firstMember() && c.InitialClusterState == clusterNew
}

// joinTokenNeeded returns a message that explains how this member gets its certificate.
func (c *Config) joinTokenNeeded() string {
	at := "on the host of " + c.firstMember()
	if c.Name == c.firstMember() || c.InitialClusterState == clusterExisting {
		at = "on the host that has the CA, in peer-certs/ca-key.pem of its data directory"
	}

	return fmt.Sprintf("there is no certificate for the other members of etcd yet: run `carillon cluster join-token %s --peer-url %s` %s, and write its output to %s",
		c.Name, c.InitialCluster[c.Name], at, peercerts.TokenPath(c.DataDir))
}

// peerCertificate obtains the certificate with which this etcd member authenticates to the others.
type peerCertificate struct {
	cfg  Config
	env  Environment
	http *httpServer // receives the startup status
	log  *zap.Logger
}

// awaitFiles returns the files of the certificate. If there is none and this node cannot create it, it waits for a join
// token until ctx ends.
func (p *peerCertificate) awaitFiles(ctx context.Context) (certs.Files, error) {
	u, err := url.Parse(p.cfg.InitialCluster[p.cfg.Name])
	if err != nil {
		return certs.Files{}, err // Validate has parsed it
	}

	member := peercerts.Member{Name: p.cfg.Name, Host: u.Hostname()}

	logged := ""
	for {
		err := p.ensureFiles(ctx, member)
		if err == nil {
			return peercerts.Files(p.cfg.DataDir), nil
		}

		reason := err.Error()
		if reason != logged {
			p.log.Warn("waiting for a certificate for the other members of etcd", zap.String("reason", reason))
			logged = reason
		}

		p.http.setStartupStatus(reason)

		if !clock.Sleep(ctx, peerCertEvery) {
			return certs.Files{}, ctx.Err()
		}
	}
}

// ensureFiles creates or renews the certificate, if this host has the CA or a join token.
func (p *peerCertificate) ensureFiles(ctx context.Context, member peercerts.Member) error {
	done, warning, err := peercerts.Ensure(p.cfg.DataDir, member, p.env.Now())
	if errors.Is(err, peercerts.ErrNoCertificate) {
		// Only the first member of a new cluster creates the CA. The others need a join token.
		if !p.cfg.makesPeerCA() {
			return errors.New(p.cfg.joinTokenNeeded())
		}
		if err := p.makeCA(ctx); err != nil {
			return err
		}

		done, warning, err = peercerts.Ensure(p.cfg.DataDir, member, p.env.Now())
	}

	if err != nil {
		return err
	}

	if warning != "" {
		p.log.Warn(warning)
	}

	if done != "" {
		p.log.Info(done, zap.String("member", member.Name), zap.String("host", member.Host))
	}

	return nil
}

// makeCA creates the CA of a new cluster, unless another member answers. A member that answers has a certificate of a CA
// that this data directory has lost, and would reject certificates of a second CA.
func (p *peerCertificate) makeCA(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(p.cfg.InitialCluster)) {
		u, err := url.Parse(p.cfg.InitialCluster[name])
		if err != nil || name == p.cfg.Name {
			continue
		}

		dialing, cancel := context.WithTimeout(ctx, peerDialTimeout)
		conn, err := p.env.Dial(dialing, "tcp", u.Host)
		cancel()
		if err != nil {
			continue
		}

		_ = conn.Close()

		return fmt.Errorf("%s already responds at %s, so the cluster has a CA, but it is not on this host: restore %s from a backup of this host, or see \"The CA is lost\" in the operations documentation",
			name, u.Host, strings.TrimSuffix(peercerts.Files(p.cfg.DataDir).CA, "/ca.pem"))
	}

	if err := peercerts.MakeCA(p.cfg.DataDir, p.env.Now()); err != nil {
		return err
	}

	p.log.Info("created the CA of the etcd members: the other members get their certificates from `carillon cluster join-token` on this host")

	return nil
}
