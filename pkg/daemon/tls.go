package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/filetrust"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// certSources holds the certificates and CAs of a node: for its API and its requests to
// other nodes (api), for its connection to etcd (etcd), and for its embedded etcd as one of several members (peer).
// Each is nil if there are none.
type certSources struct{ api, etcd, peer *certs.Source }

// servesTLS reports whether the API uses TLS.
func (c *Config) servesTLS() bool { return c.TLSCert != "" }

// urlScheme returns the scheme of the API's URL.
func (c *Config) urlScheme() string {
	if c.servesTLS() {
		return "https"
	}
	return "http"
}

// validateTLS checks the TLS settings and reads their files.
func (c *Config) validateTLS() error {
	if err := requireBoth("tls_cert", c.TLSCert, "tls_key", c.TLSKey); err != nil {
		return err
	}

	modes := []string{string(certs.None), string(certs.Optional), string(certs.Require)}
	if !slices.Contains(modes, c.TLSClientAuth) {
		return task.Invalid(task.CodeBadValue, "tls_client_auth", "%s is not one of none, optional, require", task.Quote(c.TLSClientAuth))
	}

	if c.TLSClientAuth != string(certs.None) {
		if !c.servesTLS() {
			return task.Invalid(task.CodeRequired, "tls_cert", "is required with tls_client_auth %s, and so is tls_key", c.TLSClientAuth)
		}
		if c.TLSCA == "" {
			return task.Invalid(task.CodeRequired, "tls_ca", "is required with tls_client_auth %s: the CA that signed the clients' certificates", c.TLSClientAuth)
		}
	}

	if err := c.validateEtcdAccess(); err != nil {
		return err
	}
	if err := c.validateSecretFiles(); err != nil {
		return err
	}

	s, err := c.securityOf()
	if err != nil {
		return err
	}

	return c.validateCertificate(s)
}

// validateSecretFiles returns an error for files with keys and passwords that other users could read or replace.
func (c *Config) validateSecretFiles() error {
	for _, file := range []struct{ field, path string }{
		{"tls_key", c.TLSKey},
		{"etcd_key", c.EtcdKey},
		{"etcd_peer_key", c.EtcdPeerKey},
		{"etcd_password_file", c.EtcdPasswordFile},
	} {
		if file.path == "" {
			continue
		}

		info, err := os.Stat(file.path)
		if err != nil {
			return unreadableFileError(file.field, file.path, err)
		}

		if err := filetrust.CheckSecret(info, uint32(os.Geteuid())); err != nil {
			return task.Invalid(task.CodeBadValue, file.field, "%s %v", file.path, err)
		}
	}

	return nil
}

// requireBoth returns an error if only one of two settings is given. a and b are their names, of and too their values.
func requireBoth(a, of, b, too string) error {
	if of != "" && too == "" {
		return task.Invalid(task.CodeRequired, b, "is required with %s", a)
	}
	if of == "" && too != "" {
		return task.Invalid(task.CodeRequired, a, "is required with %s", b)
	}

	return nil
}

// withScheme adds a scheme to an endpoint of the form host:port, which etcdctl accepts, too: https if files for
// TLS are configured, otherwise http. It returns other endpoints unchanged.
func (c *Config) withScheme(endpoint string) string {
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil || host == "" || port == "" || strings.HasPrefix(endpoint, "unix:") || strings.ContainsAny(port, "/?#") {
		return endpoint
	}
	if c.EtcdCA != "" || c.EtcdCert != "" || c.EtcdKey != "" {
		return "https://" + endpoint
	}

	return "http://" + endpoint
}

// validateEtcdAccess checks the endpoints of etcd and the settings for connections to them.
func (c *Config) validateEtcdAccess() error {
	schemes := map[string]bool{}
	c.EtcdEndpoints = slices.Clone(c.EtcdEndpoints)
	for i, e := range c.EtcdEndpoints {
		// Endpoints are logged, and etcd's client ignores a password in them. The message does not quote it either.
		if !strings.HasPrefix(e, "unix:") && strings.Contains(e, "@") {
			return task.Invalid(task.CodeBadValue, "etcd_endpoints", "one of them has a user or a password in it: give etcd_user and etcd_password_file")
		}

		e = c.withScheme(e)
		c.EtcdEndpoints[i] = e

		u, err := url.Parse(e)
		if err != nil || !((u.Scheme == "http" || u.Scheme == "https") && u.Port() != "" || u.Scheme == "unix" && u.Path != "") {
			return task.Invalid(task.CodeBadValue, "etcd_endpoints",
				"%s is not an endpoint such as https://10.0.0.1:2379, http://10.0.0.1:2379, 10.0.0.1:2379 or unix:///run/etcd.sock", task.Quote(e))
		}

		schemes[u.Scheme] = true
	}

	if len(schemes) > 1 {
		return task.Invalid(task.CodeBadValue, "etcd_endpoints", "are all https, all http or all unix")
	}

	settings := []struct{ field, value string }{
		{"etcd_ca", c.EtcdCA}, {"etcd_cert", c.EtcdCert}, {"etcd_key", c.EtcdKey},
		{"etcd_user", c.EtcdUser}, {"etcd_password", c.EtcdPassword}, {"etcd_password_file", c.EtcdPasswordFile},
	}
	for i, s := range settings {
		switch {
		case s.value == "":
		case c.Embedded:
			return task.Invalid(task.CodeBadValue, s.field, "applies only to an etcd at etcd_endpoints, not to the embedded etcd")
		case i < 3 && !schemes["https"]:
			return task.Invalid(task.CodeBadValue, s.field, "requires endpoints with https://")
		}
	}

	if err := requireBoth("etcd_cert", c.EtcdCert, "etcd_key", c.EtcdKey); err != nil {
		return err
	}

	switch {
	case c.EtcdPassword != "" && c.EtcdPasswordFile != "":
		return task.Invalid(task.CodeBadValue, "etcd_password_file", "cannot be combined with etcd_password")
	case c.EtcdUser == "" && c.EtcdPassword != "", c.EtcdUser == "" && c.EtcdPasswordFile != "":
		return task.Invalid(task.CodeRequired, "etcd_user", "is required with a password")
	case c.EtcdUser != "" && c.EtcdPassword == "" && c.EtcdPasswordFile == "":
		return task.Invalid(task.CodeRequired, "etcd_password_file", "is required with etcd_user; omit both if etcd takes the user from the certificate's common name")
	case c.EtcdPasswordFile != "":
		if _, err := kv.ReadPassword(c.EtcdPasswordFile); err != nil {
			return unreadableFileError("etcd_password_file", c.EtcdPasswordFile, err)
		}
	}

	return nil
}

// unreadableFileError returns the error for a setting whose file cannot be read.
func unreadableFileError(field, path string, err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		err = fmt.Errorf("%s: %w", path, p.Err)
	}
	return task.Invalid(task.CodeBadValue, field, "%s", err)
}

// securityOf opens the files of all certificates and CAs.
func (c *Config) securityOf() (s certSources, err error) {
	open := func(prefix string, f certs.Files) (*certs.Source, error) {
		if f == (certs.Files{}) {
			return nil, nil
		}

		s, err := certs.Open(f)
		var fault *certs.FileError
		if errors.As(err, &fault) {
			err = task.Invalid(task.CodeBadValue, prefix+fault.Part, "%s", fault)
		}

		return s, err
	}

	if s.api, err = open("tls_", certs.Files{Cert: c.TLSCert, Key: c.TLSKey, CA: c.TLSCA}); err != nil {
		return s, err
	}
	if s.etcd, err = open("etcd_", certs.Files{Cert: c.EtcdCert, Key: c.EtcdKey, CA: c.EtcdCA}); err != nil {
		return s, err
	}

	s.peer, err = open("etcd_peer_", certs.Files{Cert: c.EtcdPeerCert, Key: c.EtcdPeerKey, CA: c.EtcdPeerCA})

	return s, err
}

// validateCertificate returns an error for a certificate that other nodes would reject. An expired certificate
// is not an error, because tasks fire without the API, and certExpiryMonitor logs it.
func (c *Config) validateCertificate(s certSources) error {
	if c.servesTLS() {
		// The certificate must be valid for the host at which other nodes reach this one, if that is known.
		host := ""
		if u, err := url.Parse(c.Advertise); err == nil {
			host = u.Hostname()
		}

		if l, _, err := net.SplitHostPort(c.Listen); err == nil && host == "" && !isUnspecifiedHost(l) {
			host = l
		}

		if err := certs.CanServe(s.api.Leaf(), host); err != nil {
			return task.Invalid(task.CodeBadValue, "tls_cert", "%s %s, where other nodes reach this one (advertise, listen)", c.TLSCert, err)
		}

		if c.TLSClientAuth == string(certs.Require) {
			if err := certs.CanCall(s.api.Leaf()); err != nil {
				return task.Invalid(task.CodeBadValue, "tls_cert", "%s %s", c.TLSCert, err)
			}
		}
	}

	if c.EtcdCert != "" {
		if err := certs.CanCall(s.etcd.Leaf()); err != nil {
			return task.Invalid(task.CodeBadValue, "etcd_cert", "%s %s", c.EtcdCert, err)
		}
	}

	if c.EtcdPeerCert != "" {
		return c.validatePeerCertificate(s.peer)
	}

	return nil
}

// validatePeerCertificate returns an error for a certificate that the other members of etcd would reject.
func (c *Config) validatePeerCertificate(s *certs.Source) error {
	u, err := url.Parse(c.InitialCluster[c.Name])
	if err != nil {
		return err // validateMembers has parsed it
	}
	if err := certs.CanServe(s.Leaf(), u.Hostname()); err != nil {
		return task.Invalid(task.CodeBadValue, "etcd_peer_cert", "%s %s, where the other members reach this one (initial_cluster)", c.EtcdPeerCert, err)
	}
	if err := certs.CanCall(s.Leaf()); err != nil {
		return task.Invalid(task.CodeBadValue, "etcd_peer_cert", "%s %s", c.EtcdPeerCert, err)
	}

	return nil
}

// securityWarnings returns warnings about valid settings that are less safe than they could be.
func (c *Config) securityWarnings(s certSources) (list []string) {
	if c.InsecurePeers {
		list = append(list, "insecure_peers: anyone who can reach the ports of initial_cluster, including every user of these hosts, can run commands as root on all of them")
	}

	if c.EtcdPeerCert != "" && c.TLSClientAuth != string(certs.None) && s.peer.SharesCA(s.api) {
		list = append(list, "etcd_peer_ca: has a CA of tls_ca, which signs the certificates of the API's clients, too: give the members of etcd a CA of their own")
	}

	return list
}

// isUnspecifiedHost reports whether a listen address has no specific host.
func isUnspecifiedHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// nodeTLS creates the connections between this node and others. It is the only place that
// distinguishes TLS from plain connections. The scheme of an address decides, so nodes with TLS and
// nodes without reach each other while a cluster migrates.
type nodeTLS struct {
	dial    certs.Dialer
	secured *certs.Source    // nil: other nodes are verified with the system's CAs
	auth    certs.ClientAuth // what the API requires of clients
	serves  bool             // the API uses TLS
}

// serverConfig returns the TLS configuration for the next connection to another node, with the current certificates.
func (t nodeTLS) serverConfig() *tls.Config {
	if t.secured == nil {
		return &tls.Config{MinVersion: tls.VersionTLS13}
	}
	return t.secured.Client()
}

// dialTLS returns a dialer for https:// addresses of other nodes.
func (t nodeTLS) dialTLS() certs.Dialer { return certs.DialTLS(t.dial, t.serverConfig) }

// wrapListener adds TLS to the API's listener if the node has a certificate.
func (t nodeTLS) wrapListener(plain net.Listener) net.Listener {
	if !t.serves {
		return plain
	}
	return tls.NewListener(plain, t.secured.Server(t.auth))
}

// httpLog returns a logger for errors of connections to the API. It leaves out connections
// that only check whether the port is open, as monitors and other nodes do.
func httpLog(log *zap.Logger) *stdlog.Logger {
	return stdlog.New(quietProbeLog{zap.NewStdLog(log.Named("http")).Writer()}, "", 0)
}

// quietProbeLog drops lines about TLS handshakes that the client has not begun.
type quietProbeLog struct{ to io.Writer }

func (l quietProbeLog) Write(b []byte) (int, error) {
	if s := strings.TrimSpace(string(b)); strings.Contains(s, "TLS handshake error") &&
		(strings.HasSuffix(s, ": EOF") || strings.HasSuffix(s, "connection reset by peer")) {
		return len(b), nil
	}
	return l.to.Write(b)
}

const (
	// expiryEvery is the interval at which certificate files are checked, in addition to each handshake.
	expiryEvery = 10 * time.Second
	// A certificate that expires within expirySoon is announced and logged. Within
	// expiryUrgent it is logged again, as an error.
	expirySoon, expiryUrgent = 30 * 24 * time.Hour, 7 * 24 * time.Hour
)

// certExpiryMonitor loads certificate files that were replaced, and reports when certificates expire: in a
// metric, in the log, and in the node's record.
type certExpiryMonitor struct {
	sources map[string]*certs.Source // by the prefix of their settings' names
	env     Environment
	log     *zap.Logger
	ends    *prometheus.GaugeVec
	told    map[string]loggedExpiry // what was logged, by setting
}

// loggedExpiry is an expiry time that was logged, and its level.
type loggedExpiry struct {
	end   time.Time
	level int // 0: not soon; 1: soon; 2: urgent; 3: expired
}

// newCertExpiryMonitor returns a monitor of all certificates that the node has.
func newCertExpiryMonitor(s certSources, env Environment, r prometheus.Registerer, log *zap.Logger) *certExpiryMonitor {
	e := &certExpiryMonitor{sources: map[string]*certs.Source{}, env: env, log: log.Named("tls"), told: map[string]loggedExpiry{},
		ends: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carillon_tls_expiry_timestamp_seconds",
			Help: "Expiry time of a certificate in seconds since 1970, by the setting that names its file."}, []string{"setting"})}
	for prefix, source := range map[string]*certs.Source{"tls_": s.api, "etcd_": s.etcd, "etcd_peer_": s.peer} {
		if source != nil {
			e.sources[prefix] = source
		}
	}

	r.MustRegister(e.ends)

	return e
}

// run checks the files every expiryEvery until ctx ends. It starts with a check.
func (e *certExpiryMonitor) run(ctx context.Context) error {
	for {
		e.checkFiles()
		if !clock.Sleep(ctx, expiryEvery) {
			return ctx.Err()
		}
	}
}

// checkFiles loads changed files and reports the expiry times once.
func (e *certExpiryMonitor) checkFiles() {
	for prefix, s := range e.sources {
		for _, n := range s.Look() {
			setting := zap.String("setting", prefix+n.Part)

			if n.Err != nil {
				e.log.Warn("cannot load a changed TLS file; keeping the previous one", setting, zap.Error(n.Err))
			} else {
				e.log.Info("loaded a changed TLS file", setting)
			}
		}

		for _, end := range s.Ends() {
			e.ends.WithLabelValues(prefix + end.Part).Set(float64(end.At.Unix()))
			e.logExpiry(prefix+end.Part, end.At)
		}
	}
}

// logExpiry logs an expiry time if its level has risen since it was last logged.
func (e *certExpiryMonitor) logExpiry(setting string, end time.Time) {
	left, level := end.Sub(e.env.Now()), 0
	for _, within := range []time.Duration{expirySoon, expiryUrgent, 0} {
		if left <= within {
			level++
		}
	}

	before := e.told[setting]
	if e.told[setting] = (loggedExpiry{end, level}); level == 0 || before.end.Equal(end) && before.level >= level {
		return
	}

	log, at := e.log.With(zap.String("setting", setting)), zap.Time("ends", end)

	switch level {
	case 1:
		log.Warn("a certificate expires soon", at)
	case 2:
		log.Error("a certificate expires within a week", at)
	default:
		log.Error("a certificate has expired: peers and clients that check it refuse this node", at)
	}
}

// expiringSoon returns the certificates that expire within expirySoon, for the node's record.
func (e *certExpiryMonitor) expiringSoon() (list []task.Expiry) {
	for _, prefix := range []string{"tls_", "etcd_", "etcd_peer_"} {
		if s := e.sources[prefix]; s != nil {
			for _, end := range s.Ends() {
				if end.At.Sub(e.env.Now()) <= expirySoon {
					list = append(list, task.Expiry{Setting: prefix + end.Part, At: task.At(end.At)})
				}
			}
		}
	}

	return list
}
