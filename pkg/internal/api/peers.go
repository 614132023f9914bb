package api

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
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/task"
)

// Peers asks other nodes on behalf of callers.
type Peers struct {
	Node     string             // this one's name
	Instance string             // and which instance of it this is
	Key      ed25519.PrivateKey // signs what is asked; nil: nothing can be asked
	TLS      bool               // other nodes are asked by TLS only
	Now      Clock

	proxy *http.Transport
	log   *zap.Logger
}

// newPeers makes Peers that reach other nodes by dial, and those at https:// addresses by dialTLS.
func newPeers(p Peers, dial, dialTLS func(ctx context.Context, network, address string) (net.Conn, error), log *zap.Logger) *Peers {
	p.proxy, p.log = newProxy(dial, dialTLS), log
	return &p
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
		ResponseHeaderTimeout: requestTimeout,
		TLSHandshakeTimeout:   5 * time.Second,
	}
}

// addressOf is where a node's API answers. A node that speaks TLS asks nobody in clear
// text: what is forwarded, and its answer, came or goes by TLS.
func (h *Peers) addressOf(n task.Node) (*url.URL, error) {
	u, err := url.Parse(n.Address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("node %s says that it is at %s, which is no address", n.Name, task.Quote(n.Address))
	}
	if h.TLS && u.Scheme != "https" {
		return nil, fmt.Errorf("node %s is at %s, without TLS, and node %s asks others by TLS only", n.Name, task.Quote(n.Address), h.Node)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/"}, nil
}

// readFrom makes a request that reads something of another node on behalf of a caller,
// by GET or HEAD. It carries no credentials of the caller, but a statement of who asks
// for what.
func (h *Peers) readFrom(ctx context.Context, who caller, n task.Node, method string, q url.Values, path ...string) (*http.Request, error) {
	u, err := h.addressOf(n)
	if err != nil {
		return nil, err
	}
	u = u.JoinPath(path...)
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if h.Key == nil {
		return nil, fmt.Errorf("node %s has no key to ask other nodes with", h.Node)
	}

	st := statement.Statement{
		From: h.Node, FromInstance: h.Instance, To: n.Name, ToInstance: n.Instance,
		Caller: statement.Caller{Who: who.who, Role: who.role, Token: who.token, Certificate: who.certificate},
	}
	req.Header.Set(statement.Header, st.Sign(h.Key, statement.Request{Method: method, Path: req.URL.RequestURI()}, h.Now()))
	return req, nil
}

// refusal is why another node refused a request, if it did. To the caller this is no
// failure of its own credentials: the two nodes do not agree. Nor are redirects passed
// on: a node has none.
func refusal(res *http.Response) error {
	switch {
	case res.StatusCode/100 == 3:
		return fmt.Errorf("it answers with a redirect (%s)", res.Status)
	case res.StatusCode != http.StatusUnauthorized && res.StatusCode != http.StatusForbidden:
		return nil
	}
	var p client.Problem
	if err := json.NewDecoder(io.LimitReader(res.Body, maxBody)).Decode(&p); err != nil || p.Detail == "" {
		return fmt.Errorf("it answered %s", res.Status)
	}
	return fmt.Errorf("it refuses this node: %s", short(p.Detail))
}

// forwardRead passes a request on to another node that has what it asks for, and the
// answer back as it comes. After an error nothing was answered.
func (h *Peers) forwardRead(c *call, n task.Node, q url.Values, path ...string) error {
	out, err := h.readFrom(c.ctx(), callerOf(c.ctx()), n, c.r.Method, q, path...)
	if err != nil {
		return err
	}
	if v := c.r.Header.Values("Range"); len(v) > 0 {
		out.Header["Range"] = v
	}

	var failed error
	p := httputil.ReverseProxy{
		Transport: h.proxy,
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.Method, pr.Out.URL, pr.Out.Host, pr.Out.Header = out.Method, out.URL, out.URL.Host, out.Header
			pr.Out.Body, pr.Out.ContentLength = nil, 0
		},
		ModifyResponse: func(res *http.Response) error {
			if err := refusal(res); err != nil {
				return err
			}
			for name := range res.Header {
				c.w.Header().Del(name) // the other node has set it as well
			}
			return nil
		},
		FlushInterval: -1,
		ErrorHandler:  func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
		ErrorLog:      zap.NewStdLog(h.log),
	}
	p.ServeHTTP(c.w, c.r)
	return failed
}

// roundTrip makes a request of readFrom.
func (h *Peers) roundTrip(req *http.Request) (*http.Response, error) { return h.proxy.RoundTrip(req) }

const (
	// peersAtOnce is how many nodes are asked side by side.
	peersAtOnce = 32
	// maxPeerAnswer is how many bytes of another node's answer are read.
	maxPeerAnswer = 16 << 20
)
