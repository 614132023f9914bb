package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
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

const (
	defaultTimeout = 30 * time.Second
	maxAnswer      = 256 << 20 // bytes of one answer that are read; logs have no limit
	maxProblem     = 1 << 20
)

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

// Client calls the API of one server. It is safe for concurrent use.
type Client struct {
	base    string // as it is shown
	target  string // what paths are added to
	token   string
	timeout time.Duration
	http    *http.Client

	readOnly bool
	trace    func(Sent)
}

// New makes a Client. It does not connect. A server or a token that cannot be
// one is a *task.Error.
func New(cfg Config) (*Client, error) {
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

	c := &Client{base: base, target: target, token: cfg.Token, timeout: cfg.Timeout, http: &http.Client{}, readOnly: cfg.ReadOnly, trace: cfg.Trace}
	if c.timeout <= 0 {
		c.timeout = defaultTimeout
	}
	check := peerCheck{own: os.Geteuid(), trusted: cfg.TrustedUsers, token: cfg.Token != "", insecure: cfg.Insecure}
	c.http.Transport = check.transport(transport(cfg.TLS), socket, !secured)
	if cfg.HTTP != nil {
		*c.http = *cfg.HTTP
	}
	c.http.Timeout = 0
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// transport is the usual one, with TLS of one's own; nil is Go's.
func transport(c *tls.Config) *http.Transport {
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

// Server is the address that the client calls.
func (c *Client) Server() string { return c.base }

// OnThisHost reports whether the server is at a socket or at a loopback address.
func (c *Client) OnThisHost() bool {
	if strings.HasPrefix(c.base, unixScheme) {
		return true
	}
	u, err := url.Parse(c.base)
	return err == nil && isLoopback(u.Hostname())
}

// call is one request.
type call struct {
	method  string
	path    string
	query   url.Values
	header  http.Header
	body    any    // written as JSON
	raw     []byte // or the body as it is
	rawType string
	lines   io.Reader // or NDJSON, as it comes
	stream  bool      // the answer is read by the caller, without a deadline
}

func (k call) writes() bool {
	return k.method != http.MethodGet && k.path != schedulePath && !k.query.Has(dryRunParam)
}

// do makes a call and decodes its answer into out, if out is not nil.
func (c *Client) do(ctx context.Context, k call, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	res, err := c.send(ctx, k)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if out == nil {
		return nil
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if kind != "application/json" {
		return c.notCarillon(res)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return c.failed(err, k.writes())
	}
	if err := json.Unmarshal(body, out); err != nil {
		e := c.notCarillon(res)
		e.Message += fmt.Sprintf(" (%v)", err)
		return e
	}
	return nil
}

// send makes a call and returns its answer if that is a success.
func (c *Client) send(ctx context.Context, k call) (*http.Response, error) {
	if err := c.guard(k); err != nil {
		return nil, err
	}
	req, err := c.request(ctx, k)
	if err != nil {
		return nil, err
	}
	res, err := c.carry(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return nil, c.failed(err, k.writes())
	}
	if res.StatusCode/100 == 2 {
		return res, nil
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	if err != nil {
		return nil, c.failed(err, k.writes())
	}
	return nil, c.problem(res, body, k.writes())
}

func (c *Client) request(ctx context.Context, k call) (*http.Request, error) {
	body, kind := k.raw, k.rawType
	if k.body != nil {
		b, err := json.Marshal(k.body)
		if err != nil {
			return nil, fmt.Errorf("write %T as JSON: %w", k.body, err)
		}
		body, kind = b, "application/json"
	}
	target := c.target + k.path
	if len(k.query) > 0 {
		target += "?" + k.query.Encode()
	}
	var r io.Reader
	switch {
	case k.lines != nil:
		r, kind = k.lines, linesType
	case body != nil:
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, k.method, target, r)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	for name, values := range k.header {
		req.Header[name] = values
	}
	if r != nil {
		req.Header.Set("Content-Type", kind)
	}
	if !k.stream {
		req.Header.Set("Accept", "application/json, application/problem+json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	return req, nil
}

// ifMatch makes a call conditional on a task's revision; 0 is any.
func ifMatch(revision int64) http.Header {
	if revision == 0 {
		return nil
	}
	return http.Header{"If-Match": {fmt.Sprintf("\"%d\"", revision)}}
}
