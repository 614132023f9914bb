package client

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// CodeClearText is the code of the error of New if the token would cross the network in clear text.
const CodeClearText = "clear_text"

const (
	// DefaultServer is the default address of a daemon's API.
	DefaultServer = "http://127.0.0.1:7070"
	// unixScheme is the scheme of the address of a unix socket.
	unixScheme = "unix://"
)

// defaultTimeout is the default of Config.Timeout.
const defaultTimeout = 30 * time.Second

// Config contains the address of the API and how to authenticate.
type Config struct {
	// Server is https://host:port, http://host:port or unix:///absolute/path; "" means DefaultServer. The
	// default scheme is http for loopback addresses, and https otherwise. Several nodes of one cluster are separated by
	// commas: a call goes to the one that answered last, and to the next one if that does not answer. All of them get the
	// token.
	Server string
	// Insecure permits sending the token in clear text to other hosts, and to any program that listens on a port
	// or a path of this host.
	Insecure bool
	// TrustedUsers are uids of users on this host who may receive the token. It is sent to programs of these
	// users, of root, and of the caller.
	TrustedUsers []int
	// Token is sent with every call; "" sends none.
	Token string
	// Confidential means that the answers contain secrets, so that the rules for sending a token apply without one, too.
	Confidential bool
	// Timeout limits each call. For streams it limits only the wait for the beginning of the answer. 0 means 30
	// s.
	Timeout time.Duration
	// TLS, if set, is used for https servers; nil means Go's default configuration with the system's CAs.
	TLS *tls.Config
	// HTTP, if set, is used for all calls. It must have its own TLS configuration, and its own check of who
	// listens on the server's address. Its redirect policy and its Timeout are ignored.
	HTTP *http.Client
	// ReadOnly rejects every call that would change something with CodeReadOnly, before it is sent.
	ReadOnly bool
	// Trace, if set, is called after every call that was sent.
	Trace func(Sent)
}

// Client calls the API of one cluster. Each service contains the calls for one resource. A Client and its
// services are safe for concurrent use.
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
	Load    *LoadService
	Alerts  *AlertsService

	Access     *AccessService
	Roles      *RolesService
	Bindings   *BindingsService
	Namespaces *NamespacesService
	NodeLimits *NodeLimitsService
	Tokens     *TokensService
	Sessions   *SessionsService
	Logins     *LoginsService
	Subjects   *SubjectsService
	AuditLog   *AuditLogService

	conn *connection
}

// New returns a Client. It does not connect. It returns task.ErrInvalid if cfg.Server is not an address, if
// cfg.Token contains characters that no token has, or, with CodeClearText, if the token would cross the network in
// clear text although cfg.Insecure is not set.
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
		Load:    &LoadService{conn},
		Alerts:  &AlertsService{conn},

		Access:     &AccessService{conn},
		Roles:      &RolesService{conn},
		Bindings:   &BindingsService{conn},
		Namespaces: &NamespacesService{conn},
		NodeLimits: &NodeLimitsService{conn},
		Tokens:     &TokensService{conn},
		Sessions:   &SessionsService{conn},
		Logins:     &LoginsService{conn},
		Subjects:   &SubjectsService{conn},
		AuditLog:   &AuditLogService{conn},

		conn: conn,
	}, nil
}

// newConnection checks the configuration and prepares the HTTP clients.
func newConnection(cfg Config) (*connection, error) {
	addresses, err := splitServers(cfg.Server)
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(cfg.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, task.Invalid(task.CodeBadValue, "token", "contains spaces or other characters that are not valid in a token")
	}

	c := &connection{token: cfg.Token, timeout: cfg.Timeout, readOnly: cfg.ReadOnly, trace: cfg.Trace}
	if c.timeout <= 0 {
		c.timeout = defaultTimeout
	}

	for _, base := range addresses {
		s, err := newServer(cfg, base)
		if err != nil {
			return nil, err
		}

		c.servers.list = append(c.servers.list, s)
	}

	if len(c.servers.list) > 1 && cfg.HTTP == nil {
		for _, s := range c.servers.list {
			limitDial(s.http.Transport.(*http.Transport))
		}
	}

	return c, nil
}

// newServer prepares the HTTP client for one address.
func newServer(cfg Config, base string) (*server, error) {
	secured, socket := strings.HasPrefix(base, "https://"), ""
	secret := cfg.Token != "" || cfg.Confidential
	target := base
	if path, ok := strings.CutPrefix(base, unixScheme); ok {
		socket, target = path, "http://carillon.socket"
	} else if u, err := url.Parse(base); err == nil && !secured && secret && !cfg.Insecure && !isLoopback(u.Hostname()) {
		return nil, task.Invalid(CodeClearText, "server",
			"%s is on another host, and without TLS anyone on the network path could read the token: use https://", task.Quote(base))
	}

	s := &server{base: base, target: target, http: &http.Client{}}
	check := peerCheck{own: os.Geteuid(), trusted: cfg.TrustedUsers, token: secret, insecure: cfg.Insecure}
	t := check.newTransport(newTransport(cfg.TLS), socket, !secured)
	t.DisableCompression = isOnThisHost(base) // nothing is saved there
	s.http.Transport = t
	if cfg.HTTP != nil {
		*s.http = *cfg.HTTP
	}

	// Each call has its own deadline. A redirect is not followed, because the token must reach only the
	// configured servers.
	s.http.Timeout = 0
	s.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	return s, nil
}

// limitDial limits how long a transport waits for a connection to dialTimeout.
func limitDial(t *http.Transport) {
	dial := t.DialContext
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}

	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()

		return dial(ctx, network, address)
	}
}

// newTransport returns the default transport with a TLS configuration; nil means Go's default.
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

// parseServer normalizes the address of a server.
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
	if err == nil {
		server = u.Redacted() // for the error
	}
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", task.Invalid(task.CodeBadValue, "server", "%s is not https://host:port, http://host:port or unix:///path", task.Quote(server))
	}

	return strings.TrimSuffix(u.String(), "/"), nil
}

// Version returns the versions of the server and of Go, and the names of the node and the cluster.
func (c *Client) Version(ctx context.Context) (Version, error) {
	var v Version
	err := c.conn.doCall(ctx, call{method: http.MethodGet, path: "/v1/version"}, &v)

	return v, err
}

// Ready returns nil if the server is ready, and otherwise an error with the reason. It needs no token.
func (c *Client) Ready(ctx context.Context) error {
	return c.conn.doCall(ctx, call{method: http.MethodGet, path: "/readyz"}, nil)
}
