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
