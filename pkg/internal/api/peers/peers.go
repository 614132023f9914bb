// Package peers sends requests to other nodes on behalf of callers, for data that only those nodes have, and to cancel
// attempts that only those nodes can end.
//
// Each request contains a statement of this node about who requests what, signed by this node, and none of the
// caller's credentials. Requests only read, except for NewCancel, which changes nothing in etcd. AskAll asks several nodes
// the same question; Forward passes one request on.
//
// The package does not find nodes and keeps no connections. If a node refuses, redirects or does not answer, the error
// contains the reason.
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
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/task"
)

// Config contains what a Client needs from its node.
type Config struct {
	Node     string             // the name of this node
	Instance string             // the instance of this node
	Key      ed25519.PrivateKey // signs requests; nil: no requests are possible
	TLS      bool               // send requests over TLS only
	Now      httpapi.Clock
	// Dial connects to other nodes, and DialTLS to those at https:// addresses. If DialTLS is nil, Dial is used
	// with the system's CAs.
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	DialTLS func(ctx context.Context, network, address string) (net.Conn, error)
	Log     *zap.Logger
}

// Client sends requests to other nodes on behalf of callers. It is safe for concurrent use.
type Client struct {
	Config
	proxy *http.Transport
}

// New returns a Client. It performs no I/O.
func New(cfg Config) *Client {
	return &Client{Config: cfg, proxy: newProxy(cfg.Dial, cfg.DialTLS)}
}

// newProxy returns the transport for requests to other nodes. It keeps no connections, because such requests
// are rare and nothing would close idle connections when the handler is dropped. It follows no redirects and
// uses no HTTP proxy.
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

// addressOf returns the address of a node's API. A node that uses TLS sends no requests in clear text, because
// the statement and the answer must stay confidential.
func (cl *Client) addressOf(n task.Node) (*url.URL, error) {
	u, err := url.Parse(n.Address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("it has published an invalid address: %s", task.Quote(n.Address))
	}
	if cl.TLS && u.Scheme != "https" {
		return nil, fmt.Errorf("it is at %s, without TLS, but node %s sends requests to other nodes only over TLS", task.Quote(n.Address), cl.Node)
	}

	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/"}, nil
}

// NewCancel returns a request to end an attempt of another node on behalf of a caller. c.By is not sent: the other node
// derives it from the statement, which names the caller.
func (cl *Client) NewCancel(ctx context.Context, who httpapi.Caller, n task.Node, c task.LateCancel) (*http.Request, error) {
	q := url.Values{"run": {c.Namespace + "/" + c.Task + "/" + c.Run}, "token": {strconv.FormatInt(c.Token, 10)}}
	return cl.NewRequest(ctx, who, n, http.MethodPost, q, statement.CancelPath)
}

// NewRequest returns a request to another node on behalf of a caller: GET or HEAD, to read its data (or see NewCancel). It
// contains no credentials of the caller, but a statement of who requests what. The statement covers the method
// and the URI, so neither may be changed afterwards.
func (cl *Client) NewRequest(ctx context.Context, who httpapi.Caller, n task.Node, method string, q url.Values, path ...string) (*http.Request, error) {
	u, err := cl.addressOf(n)
	if err != nil {
		return nil, err
	}

	u = u.JoinPath(path...)
	u.RawQuery = encodeQuery(q)

	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if cl.Key == nil {
		return nil, fmt.Errorf("node %s has no key to sign requests to other nodes", cl.Node)
	}

	st := statement.Statement{
		From: cl.Node, FromInstance: cl.Instance, To: n.Name, ToInstance: n.Instance,
		Caller: statement.Caller{Who: who.Who, Token: who.Token, Address: who.Address, Certificate: who.Certificate},
	}
	req.Header.Set(statement.Header, st.Sign(cl.Key, statement.Request{Method: method, Path: req.URL.RequestURI()}, cl.Now()))

	return req, nil
}

// encodeQuery encodes the parameters of a request. Commas, colons and slashes need no escapes in a query (RFC 3986, section
// 3.4). A question has many of them, and the length of a URI is limited.
func encodeQuery(q url.Values) string {
	return strings.NewReplacer("%2C", ",", "%3A", ":", "%2F", "/").Replace(q.Encode())
}

// Refusal returns why another node refused a request, or nil if it did not. The caller must not see this as a
// failure of its own credentials, because the two nodes disagree. A redirect is an error as well, because a
// node never sends one.
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

	return fmt.Errorf("it rejects this node: %s", httpapi.Shorten(p.Detail))
}

// Forward forwards a request to another node that has the requested data, and streams the answer back. If it
// returns an error, nothing has been written to the caller.
func (cl *Client) Forward(c *httpapi.Call, n task.Node, q url.Values, path ...string) error {
	out, err := cl.NewRequest(c.Context(), httpapi.CallerOf(c.Context()), n, c.Request.Method, q, path...)
	if err != nil {
		return err
	}

	// Only Range is passed on. All other headers of the caller, including its credentials, are dropped.
	if v := c.Request.Header.Values("Range"); len(v) > 0 {
		out.Header["Range"] = v
	}

	var failed error
	proxy := httputil.ReverseProxy{
		Transport: cl.proxy,
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.Method, pr.Out.URL, pr.Out.Host, pr.Out.Header = out.Method, out.URL, out.URL.Host, out.Header
			pr.Out.Body, pr.Out.ContentLength = nil, 0
		},
		ModifyResponse: func(res *http.Response) error {
			if err := Refusal(res); err != nil {
				return err
			}

			for name := range res.Header {
				c.Writer.Header().Del(name) // the other node has set it too
			}

			return nil
		},
		FlushInterval: -1,
		ErrorHandler:  func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
		ErrorLog:      zap.NewStdLog(cl.Log),
	}

	proxy.ServeHTTP(c.Writer, c.Request)

	return failed
}

// RoundTrip sends a request from NewRequest.
func (cl *Client) RoundTrip(req *http.Request) (*http.Response, error) {
	return cl.proxy.RoundTrip(req)
}
