package embedded

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/certs"
)

// Peers makes an embedded server one of several members of a cluster. As always, only the process of the member uses
// it as a client. So if a member is cut off from the others, its process is cut off as well, and loses its shards and
// its leadership to other nodes.
type Peers struct {
	// Members are the URLs at which the members reach each other, by name. They include the URL of this member, under
	// Config.Name. They apply when the cluster is created. Afterwards the cluster itself knows its members, and
	// a difference is only logged.
	Members map[string]string
	// Listen is the URL to listen on. The default is the URL of this member. The listener binds the ListenAddress of
	// its host.
	Listen string
	// Join means that the cluster exists and that this member has been added to it (see Client.MemberAddAsLearner).
	// It applies while Dir is empty. The member copies the data, and becomes a voting member when it has caught up,
	// before Start returns.
	Join bool
	// CertFile, KeyFile and CAFile must be set together. They are used in both directions between the members, whose
	// URLs must then be https. The certificate of each member is for servers and clients, and contains the host of
	// its URL. Without them there is no authentication: anybody who can reach the port can write any key.
	CertFile, KeyFile, CAFile string
}

const (
	// peerCatchUpEntries is how many applied requests etcd keeps in memory for slow members. A member that is further
	// behind receives the whole database. At the rate of group commit, they cover the seconds that a restart takes,
	// and they use at most 220 MB.
	peerCatchUpEntries = 2000
	// firstWaitTold is how long a member waits for the others before it logs that, and waitToldEvery how often it
	// repeats the message.
	firstWaitTold = 2 * time.Second
	waitToldEvery = 10 * time.Second
	// peerTimeout limits a request to another member.
	peerTimeout = 2 * time.Second
	// promoteEvery is how often a learner tries to become a voting member.
	promoteEvery = 250 * time.Millisecond
)

// noPeersURL is the peer URL of a server without other members. Its data are recognized by it (see checkData).
const noPeersURL = "unix://no-peers"

// otherMembers returns the URLs of the members except own, in the order of their names.
func (p *Peers) otherMembers(own string) []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(p.Members)) {
		if name != own {
			list = append(list, p.Members[name])
		}
	}

	return list
}

// tlsInfo returns the TLS settings for connections to other members; the zero value without certificates.
func (p *Peers) tlsInfo() transport.TLSInfo {
	if p.CertFile == "" {
		return transport.TLSInfo{}
	}
	return transport.TLSInfo{CertFile: p.CertFile, KeyFile: p.KeyFile, TrustedCAFile: p.CAFile, ClientCertAuth: true, MinVersion: tls.VersionTLS13}
}

func (p *Peers) certFiles() certs.Files {
	return certs.Files{Cert: p.CertFile, Key: p.KeyFile, CA: p.CAFile}
}

// listenURL returns the URL to listen on. Its host is always an IP address, the one that ListenAddress returns.
func (p *Peers) listenURL(own *url.URL) (*url.URL, error) {
	l := *own
	if p.Listen != "" {
		given, err := url.Parse(p.Listen)
		if err != nil {
			return nil, err
		}
		l = *given
	}

	addr, err := ListenAddress(l.Hostname())
	if err != nil {
		return nil, err
	}

	// The port of the URL is kept; only its host is replaced.
	l.Host = net.JoinHostPort(addr.String(), l.Port())

	return &l, nil
}

// ListenAddress returns the address that a listener for host binds: host itself if it is an IP address, 127.0.0.1 for
// localhost, and otherwise one of the addresses to which the name resolves. A name never means all interfaces. A
// check of the settings that runs before the listener exists must check this address, not the name.
//
// If there are several addresses, it prefers those that other hosts can reach, and then IPv4, as net.Listen does.
func ListenAddress(host string) (netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr, nil
	}
	if host == "localhost" {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	}

	ips, err := net.LookupIP(host)
	if err != nil {
		return netip.Addr{}, err
	}

	var resolved []netip.Addr
	for _, ip := range ips {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			resolved = append(resolved, addr.Unmap())
		}
	}

	if len(resolved) == 0 {
		return netip.Addr{}, fmt.Errorf("%s has no address", host)
	}

	return slices.MinFunc(resolved, func(a, b netip.Addr) int {
		return cmp.Or(
			compareBool(a.IsLoopback() || a.IsLinkLocalUnicast(), b.IsLoopback() || b.IsLinkLocalUnicast()),
			compareBool(a.Is6(), b.Is6()),
			a.Compare(b))
	}), nil
}

// compareBool sorts false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}

	return 1
}

// withPeers adds the settings of a member of several to c, and binds the peer port.
func (s *Server) withPeers(ctx context.Context, c *config.ServerConfig) error {
	p := s.cfg.Peers
	own, err := url.Parse(p.Members[s.cfg.Name])
	if err != nil || own.Host == "" {
		return fmt.Errorf("member %q has no URL among those of the cluster", s.cfg.Name)
	}
	if (own.Scheme == "https") != (p.CertFile != "") {
		return fmt.Errorf("the URL of member %s is %s: it must be https with certificates, and http without", s.cfg.Name, own)
	}

	listen, err := p.listenURL(own)
	if err != nil {
		return fmt.Errorf("listen for peers: %w", err)
	}
	if s.peers, err = s.listenPeers(listen); err != nil {
		return fmt.Errorf("listen for peers: %w", err)
	}

	// etcd itself opens no listener: peerServer serves its handler.
	c.PeerURLs = types.URLs{*own}
	c.PeerTLSInfo, c.SnapshotCatchUpEntries = p.tlsInfo(), peerCatchUpEntries
	members := p.Members
	if p.Join {
		c.NewCluster = false

		// A member with data has the list of members in them, and ignores the configured one.
		if !s.hasData() {
			if members, err = s.joinedMembers(ctx); err != nil {
				return err
			}
		}
	}

	if c.InitialPeerURLsMap, err = types.NewURLsMapFromStringMap(members, ","); err != nil {
		return fmt.Errorf("the URLs of the members: %w", err)
	}

	return nil
}

// hasData reports whether a member has run in the data directory before.
func (s *Server) hasData() bool { return wal.Exist(filepath.Join(s.cfg.Dir, "member", "wal")) }

// joinedMembers returns the members of the cluster to join, by name. This member must be among them and must not have
// run yet. joinedMembers waits until another member answers.
func (s *Server) joinedMembers(ctx context.Context) (map[string]string, error) {
	own := s.cfg.Peers.Members[s.cfg.Name]
	waiting := s.beginStartupWait()
	defer waiting.stop()

	for {
		remote, err := s.remoteCluster()
		if err != nil {
			waiting.checkMembers(ctx, s)
			if !clock.Sleep(ctx, time.Second) {
				return nil, context.Cause(ctx)
			}
			continue
		}

		// etcd requires the complete list of members, including this one under its name. A member that has not run yet has
		// no name in the cluster, so any unique name will do for it.
		members, found := map[string]string{}, false
		for _, m := range remote.Members() {
			name := cmp.Or(m.Name, "member-"+m.ID.String())
			if slices.Contains(m.PeerURLs, own) {
				// A member announces its name when it runs for the first time. This directory is empty, so its data are lost.
				if m.Name != "" {
					return nil, s.lostData(m)
				}
				name, found = s.cfg.Name, true
			}

			if len(m.PeerURLs) > 0 {
				members[name] = m.PeerURLs[0]
			}
		}

		if !found {
			return nil, fmt.Errorf("the cluster at %s has no member at %s: add it first with `carillon cluster member add %s --peer-url %s`",
				strings.Join(s.cfg.Peers.otherMembers(s.cfg.Name), ", "), own, s.cfg.Name, own)
		}

		return members, nil
	}
}

// lostData returns the error for a member that has run before and whose data directory is empty.
func (s *Server) lostData(m *membership.Member) error {
	return fmt.Errorf("member %s already belongs to this cluster, but has no data here: if its data are lost, replace it: "+
		"`carillon cluster member remove %s`, `carillon cluster member add %s --peer-url %s`, and start with --initial-cluster-state existing",
		m.Name, m.Name, s.cfg.Name, s.cfg.Peers.Members[s.cfg.Name])
}

// remoteCluster requests the list of members from the other members, one after another, until one answers.
func (s *Server) remoteCluster() (*membership.RaftCluster, error) {
	p := s.cfg.Peers
	rt, err := rafthttp.NewRoundTripper(p.tlsInfo(), peerTimeout)
	if err != nil {
		return nil, err
	}

	if t, ok := rt.(*http.Transport); ok {
		defer t.CloseIdleConnections()
	}

	return etcdserver.GetClusterFromRemotePeers(zap.NewNop(), p.otherMembers(s.cfg.Name), rt)
}

// explainError returns a better explanation of err, with which etcd did not start or stopped, if the list of members
// at another member shows one. Otherwise it returns err.
func (s *Server) explainError(err error) error {
	if s.cfg.Peers == nil {
		return err
	}

	remote, rerr := s.remoteCluster()

	// The cluster exists, and this member starts as if it created it.
	if rerr == nil && strings.Contains(err.Error(), "has already been bootstrapped") {
		for _, m := range remote.Members() {
			if slices.Contains(m.PeerURLs, s.cfg.Peers.Members[s.cfg.Name]) {
				return s.lostData(m)
			}
		}
	}

	if s.etcd == nil {
		return err
	}

	// It is the same cluster, and this member is not in it any more. The member itself may have applied its removal
	// before a member that answers has, or only the others know of it.
	own, id := s.etcd.Cluster(), s.etcd.MemberID()
	if own.Member(id) == nil || rerr == nil && remote.ID() == own.ID() && remote.Member(id) == nil {
		return fmt.Errorf("member %s has been removed from its cluster: to add it again, delete %s, run "+
			"`carillon cluster member add %s --peer-url %s`, and start with --initial-cluster-state existing",
			s.cfg.Name, s.cfg.Dir, s.cfg.Name, s.cfg.Peers.Members[s.cfg.Name])
	}

	return err
}

// checkForeignData returns an error if the other members belong to another cluster than the data of this one. Without
// this check, Start would wait for its own members without limit.
func (s *Server) checkForeignData() error {
	remote, err := s.remoteCluster()
	if err != nil || remote.ID() == s.etcd.Cluster().ID() {
		return nil
	}

	return fmt.Errorf("the members at %s belong to another etcd cluster (%s) than the data in this directory (%s): "+
		"either the directory is wrong, or --initial-cluster, which must be the same on all agents that start together",
		strings.Join(s.cfg.Peers.otherMembers(s.cfg.Name), ", "), remote.ID(), s.etcd.Cluster().ID())
}

// promoteSelf waits until this member is a voting member. A member that joins an existing cluster is a learner until
// it has caught up.
func (s *Server) promoteSelf(ctx context.Context) error {
	for told := time.Now(); s.etcd.IsLearner(); {
		// etcd refuses the promotion until the learner has nearly the whole log of the leader.
		_, err := s.etcd.PromoteMember(ctx, uint64(s.etcd.MemberID()))
		if err == nil {
			s.cfg.Logger.Info("caught up, and votes", zap.String("member", s.cfg.Name))
			return nil
		}

		if time.Since(told) > waitToldEvery {
			told = time.Now()
			s.cfg.Logger.Warn("has not caught up with the other members of etcd yet", zap.String("member", s.cfg.Name), zap.Error(err))
		}

		if !clock.Sleep(ctx, promoteEvery) {
			return context.Cause(ctx)
		}
	}

	return nil
}

// compareMembers logs a difference between the configured members and those of the cluster. etcd ignores the former.
func (s *Server) compareMembers() {
	if s.cfg.Peers == nil {
		return
	}

	var known []string
	for _, m := range s.etcd.Cluster().Members() {
		known = append(known, m.Name+"="+strings.Join(m.PeerURLs, ","))
	}

	var given []string
	for name, u := range s.cfg.Peers.Members {
		given = append(given, name+"="+u)
	}

	slices.Sort(known)
	slices.Sort(given)

	if !slices.Equal(known, given) {
		s.cfg.Logger.Warn("--initial-cluster differs from the members of the cluster and is ignored: it is used only when a cluster is created",
			zap.Strings("given", given), zap.Strings("members", known))
	}
}
