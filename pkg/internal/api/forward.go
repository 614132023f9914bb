package api

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
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

// PublicKey is the public half of a node's key as its record has it.
func PublicKey(key ed25519.PrivateKey) string {
	return base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey))
}

// addressOf is where a node's API answers. A node that speaks TLS asks nobody in clear
// text: what is forwarded, and its answer, came or goes by TLS.
func (s *server) addressOf(n task.Node) (*url.URL, error) {
	u, err := url.Parse(n.Address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("node %s says that it is at %s, which is no address", n.Name, task.Quote(n.Address))
	}
	if s.TLS && u.Scheme != "https" {
		return nil, fmt.Errorf("node %s is at %s, without TLS, and node %s asks others by TLS only", n.Name, task.Quote(n.Address), s.Node)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/"}, nil
}

// readFrom makes a request that reads something of another node on behalf of a caller,
// by GET or HEAD. It carries no credentials of the caller, but a statement of who asks
// for what.
func (s *server) readFrom(ctx context.Context, who caller, n task.Node, method string, q url.Values, path ...string) (*http.Request, error) {
	u, err := s.addressOf(n)
	if err != nil {
		return nil, err
	}
	u = u.JoinPath(path...)
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if s.Key == nil {
		return nil, fmt.Errorf("node %s has no key to ask other nodes with", s.Node)
	}

	st := statement.Statement{
		From: s.Node, FromInstance: s.Instance, To: n.Name, ToInstance: n.Instance,
		Caller: statement.Caller{Who: who.who, Role: who.role, Token: who.token, Certificate: who.certificate},
	}
	req.Header.Set(statement.Header, st.Sign(s.Key, statement.Request{Method: method, Path: req.URL.RequestURI()}, s.Now()))
	return req, nil
}

// callerFrom finds the caller in the statement of another node.
func (s *server) callerFrom(r *http.Request) (caller, error) {
	refuse := func(why string) error {
		return fail(http.StatusUnauthorized, client.CodeUnauthorized, "%s", why)
	}
	values := r.Header.Values(statement.Header)
	if len(values) > 1 || len(r.Header.Values("Authorization")) > 0 {
		return caller{}, refuse("send one statement, and no Authorization header beside it")
	}
	if r.Body != nil && r.Body != http.NoBody {
		return caller{}, refuse("a request with a statement has no body")
	}

	known := func(node string) (statement.Issuer, bool) {
		n, ok := s.Peer(node)
		key, err := base64.StdEncoding.DecodeString(n.PublicKey)
		return statement.Issuer{Instance: n.Instance, Key: key}, ok && err == nil
	}
	st, err := s.statements.Verify(values[0], statement.Request{Method: r.Method, Path: r.RequestURI}, known, s.Now())
	if err != nil {
		s.log.Warn("refused a request from another node", zap.String("path", short(r.URL.Path)), zap.String("from", r.RemoteAddr), zap.Error(err))
		return caller{}, refuse(err.Error())
	}
	if st.Caller.Role != RoleAdmin {
		return caller{}, forbidden(st.Caller.Role)
	}
	return caller{who: st.Caller.Who, role: st.Caller.Role, token: st.Caller.Token, certificate: st.Caller.Certificate, from: st.From}, nil
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
func (s *server) forwardRead(c *call, n task.Node, q url.Values, path ...string) error {
	out, err := s.readFrom(c.ctx(), callerOf(c.ctx()), n, c.r.Method, q, path...)
	if err != nil {
		return err
	}
	if v := c.r.Header.Values("Range"); len(v) > 0 {
		out.Header["Range"] = v
	}

	var failed error
	p := httputil.ReverseProxy{
		Transport: s.proxy,
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
		ErrorLog:      zap.NewStdLog(s.log),
	}
	p.ServeHTTP(c.w, c.r)
	return failed
}

// untilRefused ends with ctx, when the node stops answering, or when the caller is not
// let in any more: the node that is asked cannot know of that, as it has no token to
// look at.
func (s *server) untilRefused(c *call) (context.Context, context.CancelFunc) {
	request := c.r // the caller replaces c.r while the goroutine below runs
	ctx, cancel := context.WithCancel(c.ctx())

	go func() {
		defer cancel()

		beat := time.NewTicker(s.Heartbeat)
		defer beat.Stop()
		for {
			select {
			case <-beat.C:
				if s.refused(ctx, request) {
					return
				}
			case <-s.Ends:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, cancel
}

// refused reports whether the caller of a request that goes on is not let in any more.
// A request that another node forwarded ends when that node ends it.
func (s *server) refused(ctx context.Context, r *http.Request) bool {
	if callerOf(r.Context()).from != "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := s.authenticate(ctx, r)
	return err != nil && asFailure(err).Status < http.StatusInternalServerError
}
