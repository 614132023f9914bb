package embedded

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
	// peerReadTimeout is the limit of etcd itself for a request of a peer, which may transfer a whole database.
	peerReadTimeout   = 5 * time.Minute
	peerHeaderTimeout = 10 * time.Second
	// refusalLogEvery is the minimum interval between two log messages about refused callers. A caller may return as
	// often as it likes.
	refusalLogEvery = 10 * time.Second
)

// peerServer is the peer port: the handler of etcd behind a listener that admits only members.
//
// It replaces the listener of etcd, which accepts every certificate that the CA has signed, or only a list of host
// names that is fixed at the start. Raft has no authentication above TLS, and anybody who can send it messages can
// write any key. Therefore a caller must present a certificate for servers with the host of a current member in it.
// This refuses the certificate that the same CA has issued to a user of the API, and that of a member which has been
// removed.
type peerServer struct {
	listener net.Listener
	http     *http.Server
	source   *certs.Source // nil without TLS
	etcd     *Server
	log      *zap.Logger
	served   sync.WaitGroup

	quiet    sync.Mutex
	nextTold time.Time // when the next refusal may be logged; guarded by quiet
}

// listenPeers binds the peer port. Callers can connect, but get no answer until serve is called.
func (s *Server) listenPeers(at *url.URL) (*peerServer, error) {
	p := &peerServer{etcd: s, log: s.cfg.Logger}
	if s.cfg.Peers.CertFile != "" {
		var err error
		if p.source, err = certs.Open(s.cfg.Peers.certFiles()); err != nil {
			return nil, err
		}
	}

	// The timeouts are those that etcd uses for streams between members.
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

// serve answers the other members. s.etcd must exist but need not be ready, because it needs the messages of the
// other members to become ready.
func (p *peerServer) serve() {
	p.http = &http.Server{
		Handler:     p.membersOnly(etcdhttp.NewPeerHandler(p.etcd.etcdLog.Logger, p.etcd.etcd)),
		ReadTimeout: peerReadTimeout, ReadHeaderTimeout: peerHeaderTimeout,
		ErrorLog: log.New(handshakeLog{p}, "", 0),
	}
	p.served.Go(func() {
		if err := p.http.Serve(p.listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			p.etcd.finishWith(fmt.Errorf("serve peers at %s: %w", p.listener.Addr(), err))
		}
	})
}

// close closes the listener and all connections. It may be called before serve.
func (p *peerServer) close() error {
	if p.http == nil {
		return p.listener.Close()
	}

	err := p.http.Close()
	p.served.Wait()

	return err
}

// membersOnly forwards the requests of members to next. TLS has verified the certificate; this function checks whose
// it is. It does so for each request, because a connection may be older than the removal of its member.
func (p *peerServer) membersOnly(next http.Handler) http.Handler {
	if p.source == nil {
		return next
	}

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cert := r.TLS.PeerCertificates[0]
		if isServer(cert) && (p.allowsNonMembers(r) || p.isMember(cert)) {
			next.ServeHTTP(w, r)
			return
		}

		reason := fmt.Sprintf("the certificate of %q does not belong to a member: it must be a server certificate with the host of a member's URL", cert.Subject.CommonName)
		p.logRefused(r.RemoteAddr, reason)
		// The status must not be 403, which means to a member of etcd that it has been removed and must stop.
		http.Error(w, reason, http.StatusUnauthorized)
	})
}

// allowsNonMembers reports whether a request is one that hosts send which are not members yet, or not any more: the
// list of members, and the stream of a member that was removed, which etcd answers with the information that it was
// removed.
func (p *peerServer) allowsNonMembers(r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}
	if r.URL.Path == "/members" {
		return true
	}

	id, err := types.IDFromString(path.Base(r.URL.Path))
	return err == nil && strings.HasPrefix(r.URL.Path, rafthttp.RaftStreamPrefix+"/") && p.etcd.etcd.IsIDRemoved(uint64(id))
}

// isServer reports whether a certificate is valid for a server of any host.
func isServer(c *x509.Certificate) bool {
	return certs.CanServe(c, "") == nil && len(certs.Names(c)) > 0
}

// isMember reports whether the certificate of a server has the host of a current member.
func (p *peerServer) isMember(c *x509.Certificate) bool {
	for _, v := range p.memberURLs() {
		if u, err := url.Parse(v); err == nil && u.Hostname() != "" && certs.CanServe(c, u.Hostname()) == nil {
			return true
		}
	}

	return false
}

// memberURLs returns the URLs of the members that this member knows. It learns of a new member from the log, and etcd
// adds no member while another one is unavailable. Before this member knows any, it uses the members of the
// configuration, which create the cluster together.
func (p *peerServer) memberURLs() (urls []string) {
	for _, m := range p.etcd.etcd.Cluster().Members() {
		urls = append(urls, m.PeerURLs...)
	}

	if len(urls) == 0 {
		for _, u := range p.etcd.cfg.Peers.Members {
			urls = append(urls, u)
		}
	}

	return urls
}

// logRefused logs that a caller was refused, at most once in refusalLogEvery.
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

// handshakeLog receives the messages of net/http about connections whose TLS handshake failed.
type handshakeLog struct{ p *peerServer }

// Write logs the message as a refusal, unless the caller has closed the connection. Members that wait for each other
// connect only to find out whether the port is open (see waiting).
func (l handshakeLog) Write(line []byte) (int, error) {
	reason, isHandshake := strings.CutPrefix(strings.TrimSpace(string(line)), "http: TLS handshake error from ")
	if from, why, ok := strings.Cut(reason, ": "); isHandshake && ok && !strings.HasSuffix(why, "EOF") && !strings.HasSuffix(why, "connection reset by peer") {
		l.p.logRefused(from, why)
	}
	return len(line), nil
}
