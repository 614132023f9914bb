package client

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// DefaultServer is where a daemon's API answers unless told otherwise.
	DefaultServer = "http://127.0.0.1:7070"
	// unixScheme begins the address of a server that listens at a path.
	unixScheme = "unix://"
)

// defaultTimeout is Config.Timeout where that is 0.
const defaultTimeout = 30 * time.Second

// Config says how to reach the API.
type Config struct {
	// Server is https://host:port, http://host:port or unix:///absolute/path; "" is
	// DefaultServer. Without a scheme it is https beyond loopback, and http on it.
	Server string
	// Insecure sends the token in clear text to other hosts, and to whatever program
	// listens at a port or a path of this one.
	Insecure bool
	// TrustedUsers may have the token: it is sent to their programs on this host, besides
	// those of root and of the caller's own.
	TrustedUsers []int
	// Token is sent with every call; "" sends none.
	Token string
	// Timeout bounds each call, of Logs the wait for its beginning; 0 is 30 s.
	Timeout time.Duration
	// TLS, if set, is used for https servers; nil is Go's own, with the system's CAs.
	TLS *tls.Config
	// HTTP, if set, carries the calls, and knows of TLS and of who listens by itself. Its
	// redirects and Timeout are not used.
	HTTP *http.Client
	// ReadOnly refuses every call that would change something, before it is sent,
	// with CodeReadOnly.
	ReadOnly bool
	// Trace, if set, hears of every call that was sent.
	Trace func(Sent)
}

// Client calls the API of one server. Each service has the calls of one resource.
// A Client and its services are safe for concurrent use.
type Client struct {
	Tasks   *TasksService
	Runs    *RunsService
	Logs    *LogsService
	Ticks   *TicksService
	Events  *EventsService
	Secrets *SecretsService
	Nodes   *NodesService
	Shards  *ShardsService
	Cluster *ClusterService
	Members *MembersService
	Freezes *FreezesService
	Audit   *AuditService
	Board   *BoardService

	conn *connection
}

// New makes a Client. It does not connect. The error is task.ErrInvalid if
// cfg.Server is no address, if cfg.Token has characters that no token has, or if the
// token would cross the network in clear text without cfg.Insecure.
func New(cfg Config) (*Client, error) {
	conn, err := newConnection(cfg)
	if err != nil {
		return nil, err
	}

	return &Client{
		Tasks:   &TasksService{conn},
		Runs:    &RunsService{conn},
		Logs:    &LogsService{conn},
		Ticks:   &TicksService{conn},
		Events:  &EventsService{conn},
		Secrets: &SecretsService{conn},
		Nodes:   &NodesService{conn},
		Shards:  &ShardsService{conn},
		Cluster: &ClusterService{conn},
		Members: &MembersService{conn},
		Freezes: &FreezesService{conn},
		Audit:   &AuditService{conn},
		Board:   &BoardService{conn},
		conn:    conn,
	}, nil
}

func newConnection(cfg Config) (*connection, error) {
	base, err := parseServer(cfg.Server)
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(cfg.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, task.Invalid(task.CodeBadValue, "token", "contains spaces or characters that no token has")
	}

	secured, socket := strings.HasPrefix(base, "https://"), ""
	target := base
	if path, ok := strings.CutPrefix(base, unixScheme); ok {
		socket, target = path, "http://carillon.socket"
	} else if u, err := url.Parse(base); err == nil && !secured && cfg.Token != "" && !cfg.Insecure && !isLoopback(u.Hostname()) {
		return nil, task.Invalid(task.CodeBadValue, "server",
			"%s is on another host, and without TLS everybody on the way could read the token: use https://, or accept the risk with --insecure (insecure: true in the context)",
			task.Quote(base))
	}

	c := &connection{base: base, target: target, token: cfg.Token, timeout: cfg.Timeout, http: &http.Client{}, readOnly: cfg.ReadOnly, trace: cfg.Trace}
	if c.timeout <= 0 {
		c.timeout = defaultTimeout
	}

	check := peerCheck{own: os.Geteuid(), trusted: cfg.TrustedUsers, token: cfg.Token != "", insecure: cfg.Insecure}
	c.http.Transport = check.newTransport(newTransport(cfg.TLS), socket, !secured)
	if cfg.HTTP != nil {
		*c.http = *cfg.HTTP
	}

	// Each call has its own deadline, and the token must not follow a redirect.
	c.http.Timeout = 0
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	return c, nil
}

// newTransport is the usual one, with TLS of one's own; nil is Go's.
func newTransport(c *tls.Config) *http.Transport {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		t = &http.Transport{Proxy: http.ProxyFromEnvironment}
	}

	t = t.Clone()
	if c != nil {
		t.TLSClientConfig = c.Clone()
	}

	return t
}

func parseServer(server string) (string, error) {
	if server == "" {
		server = DefaultServer
	}

	if path, ok := strings.CutPrefix(server, unixScheme); ok {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			return "", task.Invalid(task.CodeBadValue, "server", "%s is not unix:///absolute/path", task.Quote(server))
		}
		return server, nil
	}

	if !strings.Contains(server, "://") {
		scheme := "https://"
		if u, err := url.Parse(scheme + server); err == nil && isLoopback(u.Hostname()) {
			scheme = "http://"
		}
		server = scheme + server
	}

	u, err := url.Parse(server)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", task.Invalid(task.CodeBadValue, "server", "%s is not https://host:port, http://host:port or unix:///path", task.Quote(server))
	}

	return strings.TrimSuffix(u.String(), "/"), nil
}

// Server returns the address that the client calls.
func (c *Client) Server() string { return c.conn.base }

// OnThisHost reports whether the server is at a unix socket or at a loopback address.
func (c *Client) OnThisHost() bool {
	if strings.HasPrefix(c.conn.base, unixScheme) {
		return true
	}

	u, err := url.Parse(c.conn.base)

	return err == nil && isLoopback(u.Hostname())
}

// Version returns the versions of the server and of Go, and the names of its node and
// its cluster.
func (c *Client) Version(ctx context.Context) (Version, error) {
	var v Version
	err := c.conn.doCall(ctx, call{method: http.MethodGet, path: "/v1/version"}, &v)

	return v, err
}

// Ready returns nil if the server is ready for work; otherwise the error says why it
// is not. It needs no token.
func (c *Client) Ready(ctx context.Context) error {
	return c.conn.doCall(ctx, call{method: http.MethodGet, path: "/readyz"}, nil)
}
