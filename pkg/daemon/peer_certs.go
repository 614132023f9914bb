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

// peerCertificate is the certificate of this member of etcd for the other members, which the agents make.
type peerCertificate struct {
	cfg  Config
	env  Environment
	http *httpServer // says what the node waits for
	log  *zap.Logger
}

// awaitFiles sees to the certificate, and waits for a join token if there is none.
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

// ensureFiles makes or renews the certificate, if this host can.
func (p *peerCertificate) ensureFiles(ctx context.Context, member peercerts.Member) error {
	done, warning, err := peercerts.Ensure(p.cfg.DataDir, member, p.env.Now())
	if errors.Is(err, peercerts.ErrNoCertificate) {
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

// makeCA makes the CA of a new cluster, unless another member answers: that one has a certificate already, of a CA
// that this data directory has lost, and would take none of a second CA.
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

		return fmt.Errorf("%s answers at %s already, so the cluster has a CA, which is not here: restore %s of this host from a backup, or see \"The CA is lost\" in the documentation of operations",
			name, u.Host, strings.TrimSuffix(peercerts.Files(p.cfg.DataDir).CA, "/ca.pem"))
	}

	if err := peercerts.MakeCA(p.cfg.DataDir, p.env.Now()); err != nil {
		return err
	}

	p.log.Info("made the CA of the members of etcd: the others get their certificates from `carillon cluster join-token`, on this host")

	return nil
}
