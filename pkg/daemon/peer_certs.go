package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/internal/peercerts"
)

const (
	// peerCertEvery is how often a member that has no certificate looks for a join token.
	peerCertEvery = time.Second
	// peerDialTimeout is how long the first member waits for another one to answer.
	peerDialTimeout = 2 * time.Second
)

// hasOwnPeerCerts reports whether the members of etcd have certificates that the agents make: the default.
func (c *Config) hasOwnPeerCerts() bool {
	return len(c.InitialCluster) > 0 && !c.InsecurePeers && c.EtcdPeerCert == ""
}

// firstMember is the member that makes the CA of a new cluster. All members have to agree on who that is before they
// can talk to each other: it is the first in the order of names.
func (c *Config) firstMember() string { return slices.Min(slices.Collect(maps.Keys(c.InitialCluster))) }

func (c *Config) makesPeerCA() bool {
	return c.Name == c.firstMember() && c.InitialClusterState == clusterNew
}

// joinTokenNeeded says how this member gets its certificate.
func (c *Config) joinTokenNeeded() string {
	at := "on the host of " + c.firstMember()
	if c.Name == c.firstMember() || c.InitialClusterState == clusterExisting {
		at = "on the host that has the CA, in peer-certs/ca-key.pem of its data directory"
	}
	return fmt.Sprintf("there is no certificate for the other members of etcd yet: run `carillon cluster join-token %s --peer-url %s` %s, and put what it prints into %s",
		c.Name, c.InitialCluster[c.Name], at, peercerts.TokenPath(c.DataDir))
}

// ensurePeerCertificate sees to the certificate of this member of etcd, and waits for a join token if it has none.
func (n *Node) ensurePeerCertificate(ctx context.Context) error {
	u, err := url.Parse(n.cfg.InitialCluster[n.cfg.Name])
	if err != nil {
		return err // Validate has parsed it
	}
	member := peercerts.Member{Name: n.cfg.Name, Host: u.Hostname()}

	told := ""
	for {
		err := n.tryPeerCertificate(ctx, member)
		if err == nil {
			break
		}
		reason := err.Error()
		if reason != told {
			n.log.Warn("waiting for a certificate for the other members of etcd", zap.String("reason", reason))
			told = reason
		}
		n.http.setStartupStatus(reason)
		if !clock.Sleep(ctx, peerCertEvery) {
			return ctx.Err()
		}
	}

	files := peercerts.Files(n.cfg.DataDir)
	n.cfg.EtcdPeerCert, n.cfg.EtcdPeerKey, n.cfg.EtcdPeerCA = files.Cert, files.Key, files.CA
	n.secured.peer, err = certs.Open(files)
	return err
}

func (n *Node) tryPeerCertificate(ctx context.Context, member peercerts.Member) error {
	done, warning, err := peercerts.Ensure(n.cfg.DataDir, member, n.outside.Now())
	if errors.Is(err, peercerts.ErrNoCertificate) {
		if !n.cfg.makesPeerCA() {
			return errors.New(n.cfg.joinTokenNeeded())
		}
		if err := n.makePeerCA(ctx); err != nil {
			return err
		}
		done, warning, err = peercerts.Ensure(n.cfg.DataDir, member, n.outside.Now())
	}
	if err != nil {
		return err
	}
	if warning != "" {
		n.log.Warn(warning)
	}
	if done != "" {
		n.log.Info(done, zap.String("member", member.Name), zap.String("host", member.Host))
	}
	return nil
}

// makePeerCA makes the CA of a new cluster, unless another member answers: that one has a certificate already, of a CA
// that this data directory has lost, and would take none of a second CA.
func (n *Node) makePeerCA(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(n.cfg.InitialCluster)) {
		u, err := url.Parse(n.cfg.InitialCluster[name])
		if err != nil || name == n.cfg.Name {
			continue
		}
		dialing, cancel := context.WithTimeout(ctx, peerDialTimeout)
		conn, err := n.outside.Dial(dialing, "tcp", u.Host)
		cancel()
		if err != nil {
			continue
		}
		_ = conn.Close()
		return fmt.Errorf("%s answers at %s already, so the cluster has a CA, which is not here: restore %s of this host from a backup, or see \"The CA is lost\" in the documentation of operations",
			name, u.Host, strings.TrimSuffix(peercerts.Files(n.cfg.DataDir).CA, "/ca.pem"))
	}
	if err := peercerts.MakeCA(n.cfg.DataDir, n.outside.Now()); err != nil {
		return err
	}
	n.log.Info("made the CA of the members of etcd: the others get their certificates from `carillon cluster join-token`, on this host")
	return nil
}
