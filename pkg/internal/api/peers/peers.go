// Package peers asks other nodes on behalf of callers: for what they alone know or keep.
//
// Each request carries a statement, signed by this node, of who asks for what, and none of the
// caller's credentials. It only reads. It does not find nodes, and keeps no connections; a node
// that refuses, redirects or does not answer is an error with the reason.
package peers

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/task"
)

// Config is what a Client needs of its node.
type Config struct {
	Node     string             // this one's name
	Instance string             // and which instance of it this is
	Key      ed25519.PrivateKey // signs what is asked; nil: nothing can be asked
	TLS      bool               // other nodes are asked by TLS only
	Now      httpapi.Clock
	// Dial reaches other nodes, and DialTLS those at https:// addresses; nil is Dial, and the
	// system's CAs.
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	DialTLS func(ctx context.Context, network, address string) (net.Conn, error)
	Log     *zap.Logger
}

// Client asks other nodes on behalf of callers.
type Client struct {
	Config
	proxy *http.Transport
}

// New makes a Client. It does no I/O.
func New(cfg Config) *Client {
	return &Client{Config: cfg, proxy: newProxy(cfg.Dial, cfg.DialTLS)}
}

// newProxy carries requests to other nodes. It keeps no connections: such
// requests are rare, and the handler has nothing that would close them. It follows no
// redirects and knows no proxy.
func newProxy(dial, dialTLS func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		DialTLSContext: dialTLS,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			return dial(ctx, network, address)
		},
		DisableKeepAlives:     true,
		DisableCompression:    true,
		ResponseHeaderTimeout: httpapi.RequestTimeout,
		TLSHandshakeTimeout:   5 * time.Second,
	}
}

// addressOf is where a node's API answers. A node that speaks TLS asks nobody in clear
// text: what is forwarded, and its answer, came or goes by TLS.
func (p *Client) addressOf(n task.Node) (*url.URL, error) {
	u, err := url.Parse(n.Address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("node %s says that it is at %s, which is no address", n.Name, task.Quote(n.Address))
	}
	if p.TLS && u.Scheme != "https" {
		return nil, fmt.Errorf("node %s is at %s, without TLS, and node %s asks others by TLS only", n.Name, task.Quote(n.Address), p.Node)
	}

	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/"}, nil
}

// NewRequest makes a request that reads something of another node on behalf of a caller,
// by GET or HEAD. It carries no credentials of the caller, but a statement of who asks
// for what.
func (p *Client) NewRequest(ctx context.Context, who httpapi.Caller, n task.Node, method string, q url.Values, path ...string) (*http.Request, error) {
	u, err := p.addressOf(n)
	if err != nil {
		return nil, err
	}

	u = u.JoinPath(path...)
	u.RawQuery = q.Encode()

	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if p.Key == nil {
		return nil, fmt.Errorf("node %s has no key to ask other nodes with", p.Node)
	}

	st := statement.Statement{
		From: p.Node, FromInstance: p.Instance, To: n.Name, ToInstance: n.Instance,
		Caller: statement.Caller{Who: who.Who, Role: who.Role, Token: who.Token, Certificate: who.Certificate},
	}
	req.Header.Set(statement.Header, st.Sign(p.Key, statement.Request{Method: method, Path: req.URL.RequestURI()}, p.Now()))

	return req, nil
}

// Refusal is why another node refused a request, if it did. To the caller this is no
// failure of its own credentials: the two nodes do not agree. Nor are redirects passed
// on: a node has none.
func Refusal(res *http.Response) error {
	switch {
	case res.StatusCode/100 == 3:
		return fmt.Errorf("it answers with a redirect (%s)", res.Status)
	case res.StatusCode != http.StatusUnauthorized && res.StatusCode != http.StatusForbidden:
		return nil
	}

	var p client.Problem
	if err := json.NewDecoder(io.LimitReader(res.Body, httpapi.MaxBody)).Decode(&p); err != nil || p.Detail == "" {
		return fmt.Errorf("it answered %s", res.Status)
	}

	return fmt.Errorf("it refuses this node: %s", httpapi.Shorten(p.Detail))
}

// Forward passes a request on to another node that has what it asks for, and the
// answer back as it comes. After an error nothing was answered.
func (p *Client) Forward(c *httpapi.Call, n task.Node, q url.Values, path ...string) error {
	out, err := p.NewRequest(c.Context(), httpapi.CallerOf(c.Context()), n, c.Request.Method, q, path...)
	if err != nil {
		return err
	}

	if v := c.Request.Header.Values("Range"); len(v) > 0 {
		out.Header["Range"] = v
	}

	var failed error
	proxy := httputil.ReverseProxy{
		Transport: p.proxy,
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.Method, pr.Out.URL, pr.Out.Host, pr.Out.Header = out.Method, out.URL, out.URL.Host, out.Header
			pr.Out.Body, pr.Out.ContentLength = nil, 0
		},
		ModifyResponse: func(res *http.Response) error {
			if err := Refusal(res); err != nil {
				return err
			}

			for name := range res.Header {
				c.Writer.Header().Del(name) // the other node has set it as well
			}

			return nil
		},
		FlushInterval: -1,
		ErrorHandler:  func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
		ErrorLog:      zap.NewStdLog(p.Log),
	}

	proxy.ServeHTTP(c.Writer, c.Request)

	return failed
}

// RoundTrip makes a request of readFrom.
func (p *Client) RoundTrip(req *http.Request) (*http.Response, error) { return p.proxy.RoundTrip(req) }

const (
	// AtOnce is how many nodes are asked side by side.
	AtOnce = 32
	// MaxAnswer is how many bytes of another node's answer are read.
	MaxAnswer = 16 << 20
)
