package kv

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/certs"
)

const (
	// etcd's own limit for a request of a peer, which may carry a whole database.
	peerReadTimeout   = 5 * time.Minute
	peerHeaderTimeout = 10 * time.Second
	// A caller that is refused can come back as often as it likes: the log tells of it at most so often.
	refusalLogEvery = 10 * time.Second
)

// peerServer is the peer port: etcd's own handler, behind a listener that admits members only.
//
// It takes the place of etcd's listener, which accepts whatever the CA has signed, or a list of host names that is
// fixed at the start. Raft has no authentication above TLS, and who may send it a message can write any key. So a
// caller has to show a certificate that is for servers, with the host of a member in it: a person's certificate for
// the API, signed by the same CA, is refused, and so is that of a member once it is removed.
type peerServer struct {
	listener net.Listener
	http     *http.Server
	source   *certs.Source // nil: peers without TLS
	etcd     *Server
	log      *zap.Logger
	served   sync.WaitGroup

	quiet    sync.Mutex
	nextTold time.Time
}

// listenPeers binds the peer port, and serves nothing yet: callers wait until serve.
func (s *Server) listenPeers(at *url.URL) (*peerServer, error) {
	p := &peerServer{etcd: s, log: orNop(s.cfg.Logger)}
	if s.cfg.Peers.CertFile != "" {
		var err error
		if p.source, err = certs.Open(s.cfg.Peers.certFiles()); err != nil {
			return nil, err
		}
	}

	l, err := transport.NewTimeoutListener(at.Host, "http", nil, rafthttp.ConnReadTimeout, rafthttp.ConnWriteTimeout)
	if err != nil {
		return nil, err
	}

	if p.source != nil {
		l = tls.NewListener(l, p.source.Server(certs.Require))
	}

	p.listener = l

	return p, nil
}

// serve answers the other members. etcd has to be there, and need not be ready: it becomes so by what they say.
func (p *peerServer) serve() {
	p.http = &http.Server{
		Handler:     p.membersOnly(etcdhttp.NewPeerHandler(p.etcd.etcd.GetLogger(), p.etcd.etcd.Server)),
		ReadTimeout: peerReadTimeout, ReadHeaderTimeout: peerHeaderTimeout,
		ErrorLog: log.New(handshakeLog{p}, "", 0),
	}
	p.served.Go(func() {
		if err := p.http.Serve(p.listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			p.etcd.finishWith(fmt.Errorf("serve peers at %s: %w", p.listener.Addr(), err))
		}
	})
}

func (p *peerServer) close() error {
	if p.http == nil {
		return p.listener.Close()
	}

	err := p.http.Close()
	p.served.Wait()

	return err
}

// membersOnly passes on what members ask. TLS has verified the certificate; this judges whose it is. It does so for
// each request, as a connection may be older than the removal of its member.
func (p *peerServer) membersOnly(next http.Handler) http.Handler {
	if p.source == nil {
		return next
	}

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cert := r.TLS.PeerCertificates[0]
		if isServer(cert) && (p.isForStrangers(r) || p.isMember(cert)) {
			next.ServeHTTP(w, r)
			return
		}

		reason := fmt.Sprintf("the certificate of %q is not one of a member: it has to be for servers, with the host of a member's URL", cert.Subject.CommonName)
		p.logRefused(r.RemoteAddr, reason)
		// Not 403, by which etcd tells a member that it has been removed and has to stop.
		http.Error(w, reason, http.StatusUnauthorized)
	})
}

// isForStrangers reports whether a request is one that hosts make that are not members, yet or any more: who the
// members are, and the stream of a member that was removed, which etcd answers by telling it so.
func (p *peerServer) isForStrangers(r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}
	if r.URL.Path == "/members" {
		return true
	}

	id, err := types.IDFromString(path.Base(r.URL.Path))
	return err == nil && strings.HasPrefix(r.URL.Path, rafthttp.RaftStreamPrefix+"/") && p.etcd.etcd.Server.IsIDRemoved(uint64(id))
}

// isServer reports whether a certificate is a server's at all, of some host.
func isServer(c *x509.Certificate) bool {
	return certs.CanServe(c, "") == nil && len(certs.Names(c)) > 0
}

// isMember reports whether a server's certificate is one of a member.
func (p *peerServer) isMember(c *x509.Certificate) bool {
	for _, v := range p.memberURLs() {
		if u, err := url.Parse(v); err == nil && u.Hostname() != "" && certs.CanServe(c, u.Hostname()) == nil {
			return true
		}
	}

	return false
}

// memberURLs are those of the members as far as this one knows: it learns of one that is added with the log, and etcd
// adds none while another is away. Before it knows any, they are those of the members that make the cluster together.
func (p *peerServer) memberURLs() (urls []string) {
	for _, m := range p.etcd.etcd.Server.Cluster().Members() {
		urls = append(urls, m.PeerURLs...)
	}

	if len(urls) == 0 {
		for _, u := range p.etcd.cfg.Peers.Members {
			urls = append(urls, u)
		}
	}

	return urls
}

// logRefused logs a caller that was refused.
func (p *peerServer) logRefused(from, reason string) {
	p.quiet.Lock()
	defer p.quiet.Unlock()

	now := time.Now()
	if now.Before(p.nextTold) {
		return
	}

	p.nextTold = now.Add(refusalLogEvery)
	p.log.Warn("refused a connection to the peer port", zap.String("from", from), zap.String("reason", reason))
}

// handshakeLog takes what net/http says of connections on which TLS fails.
type handshakeLog struct{ p *peerServer }

// Write logs a line, unless it tells of a connection that ended by itself: members that wait for each other connect
// only to see whether somebody listens.
func (l handshakeLog) Write(line []byte) (int, error) {
	reason, isHandshake := strings.CutPrefix(strings.TrimSpace(string(line)), "http: TLS handshake error from ")
	if from, why, ok := strings.Cut(reason, ": "); isHandshake && ok && !strings.HasSuffix(why, "EOF") && !strings.HasSuffix(why, "connection reset by peer") {
		l.p.logRefused(from, why)
	}
	return len(line), nil
}
