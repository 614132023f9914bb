package api

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/task"
)

type trustedUserKey struct{}

// WithTrustedUser returns the context of a connection over the unix socket whose peer may do everything without
// a token: root, the daemon's user, or an administrator of this host. Requests on it without a token are
// attributed to that user. A request with a token is judged by its token.
func WithTrustedUser(ctx context.Context, uid uint32) context.Context {
	return context.WithValue(ctx, trustedUserKey{}, uid)
}

type refusedUserKey struct{}

// WithRefusedUser returns the context of a connection over the unix socket whose peer has the rights of a trusted user on
// this host, but is not trusted, and why. Requests on it need a token, and are refused with that reason without one.
func WithRefusedUser(ctx context.Context, why string) context.Context {
	return context.WithValue(ctx, refusedUserKey{}, why)
}

// findCaller returns the caller of a request, from its statement, its token, its unix socket or its client
// certificate. takesLink says that the request may have a login link as its token. It reads nothing from etcd. With an error, the caller is who the credentials belong to, as far as that is
// known, and may do nothing. An error is a *httpapi.Failure with status 401 or 429, or 503 while this node
// does not know who may do what, or 404 if it serves only other nodes.
func (s *server) findCaller(r *http.Request, takesLink bool) (httpapi.Caller, error) {
	if len(r.Header.Values(statement.Header)) > 0 {
		return s.callerFrom(r)
	}

	if err := s.checkServing(); err != nil {
		return httpapi.Caller{}, err
	}

	address := addressOf(r)
	certificate := certificateOf(r)

	// A token decides, also beside a certificate or on the unix socket. The audit record has both.
	if values := r.Header.Values("Authorization"); len(values) > 0 {
		token, err := s.tokenOf(r, values, address)
		if err == nil && token.Kind == task.TokenKindLink && !takesLink {
			err = unauthorized("a login link is not a token: open it in a browser")
		}

		return httpapi.Caller{Who: token.Subject, Token: token.ID, Certificate: certificate, Address: address}, err
	}

	if uid, trusted := r.Context().Value(trustedUserKey{}).(uint32); trusted {
		return httpapi.Caller{Who: fmt.Sprintf("%s:uid=%d", access.KindUnix, uid)}, nil
	}

	if why, refused := r.Context().Value(refusedUserKey{}).(string); refused {
		return httpapi.Caller{}, httpapi.Fail(http.StatusUnauthorized, client.CodeUnauthorized, "a token is required: %s", why).
			WithHint("processes of tasks have no rights of their own, even as root: create a token, and give it to the task with a secret")
	}

	if certificate != "" {
		who := access.KindCert + ":" + certificate
		if s.access.View().Disabled(who) {
			return httpapi.Caller{Who: who, Certificate: certificate, Address: address}, unauthorized("this certificate's subject is disabled")
		}
		return httpapi.Caller{Who: who, Certificate: certificate, Address: address}, nil
	}

	return httpapi.Caller{}, unauthorized("a token is required")
}

// loginCaller returns the caller of a request that has just signed in as a subject.
func loginCaller(r *http.Request, subject string) httpapi.Caller {
	return httpapi.Caller{Who: subject, Certificate: certificateOf(r), Address: addressOf(r)}
}

// checkServing returns why this node serves no caller: it does not have the role api, or it has not loaded the access
// records yet.
func (s *server) checkServing() error {
	if s.ForwardedOnly {
		return httpapi.Fail(http.StatusNotFound, client.CodeNoRoute, "node %s does not serve the API: it does not have the role api", s.Node).
			WithHint("use another node; carillon node list shows which nodes have the role")
	}

	if s.access.View().Fence == 0 {
		return httpapi.Fail(http.StatusServiceUnavailable, client.CodeNotReady, "not ready: the access records are not loaded")
	}

	return nil
}

func unauthorized(why string) error {
	return httpapi.Fail(http.StatusUnauthorized, client.CodeUnauthorized, "%s", why).
		WithHint("send Authorization: Bearer TOKEN; the node that created the cluster wrote a token to its data directory")
}

// tokenOf returns the token in a request's Authorization header, also with the error for one that is known and not accepted
// now. A caller who has tried many wrong tokens must wait; a valid
// token is always accepted, so that nobody who shares its holder's address can lock the holder out.
func (s *server) tokenOf(r *http.Request, values []string, address string) (task.Token, error) {
	scheme, secret, _ := strings.Cut(values[0], " ")
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") {
		return task.Token{}, unauthorized("the Authorization header must have the form: Bearer carillon_ID_SECRET")
	}

	id, hash, wellFormed := authority.ParseSecret(strings.TrimSpace(secret))
	view := s.access.View()

	token, ok := view.Verify(id, hash)
	if !ok {
		if !s.logins.mayTry(clientOf(r)) {
			return task.Token{}, errTooManyLogins()
		}
		if !wellFormed {
			return task.Token{}, unauthorized("the Authorization header must have the form: Bearer carillon_ID_SECRET")
		}
		return task.Token{}, unauthorized("the token is not known")
	}

	why := view.TokenProblem(access.Caller{Subject: token.Subject, Token: token.ID}, s.Now())

	switch {
	case why != "":
		return token, unauthorized(why)
	case !token.Until.IsZero() && s.Clock() != nil:
		return token, unauthorized("this node's clock is not trusted, so it accepts no token that expires; use another node")
	case view.Disabled(token.Subject):
		return token, unauthorized("the token's subject is disabled")
	case !access.AcceptsAddress(&token, address):
		return token, unauthorized("the token is not accepted from this address")
	case token.Node != "" && token.Node != s.Node:
		return token, unauthorized("only node " + token.Node + " accepts this session or login link of root")
	}

	return token, nil
}

// addressOf returns the address that a request came from, without the port; "" over the unix socket.
func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}

// certificateOf returns the name of a client certificate: its first URI, or else its common name. It returns "" if the
// client sent none that was verified, and for the certificate of a node, which does not identify a caller.
func certificateOf(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return ""
	}

	leaf := r.TLS.VerifiedChains[0][0]
	if !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) || slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) {
		return ""
	}

	name := leaf.Subject.CommonName
	if len(leaf.URIs) > 0 {
		name = leaf.URIs[0].String()
	}

	if access.CheckSubject("", access.KindCert+":"+name) != nil {
		return "" // no binding can name it
	}

	return name
}

// callerFrom returns the caller that another node names in a signed statement. A statement is valid for one
// request, once, and only from a node that is present and has the role api. The request must have neither a body nor other
// credentials, because the statement does not cover them.
func (s *server) callerFrom(r *http.Request) (httpapi.Caller, error) {
	refuse := func(why string) error {
		return httpapi.Fail(http.StatusUnauthorized, client.CodeUnauthorized, "%s", why)
	}

	values := r.Header.Values(statement.Header)
	if len(values) > 1 || len(r.Header.Values("Authorization")) > 0 {
		return httpapi.Caller{}, refuse("send one statement, and no Authorization header")
	}
	if r.Body != nil && r.Body != http.NoBody {
		return httpapi.Caller{}, refuse("a request with a statement has no body")
	}

	known := func(node string) (statement.Issuer, bool) {
		n, ok := s.Peer(node)
		key, err := base64.StdEncoding.DecodeString(n.PublicKey)
		return statement.Issuer{Instance: n.Instance, Key: key}, ok && err == nil && n.Has(task.RoleAPI)
	}

	st, err := s.statements.Verify(values[0], statement.Request{Method: r.Method, Path: r.RequestURI}, known, s.Now())
	if err != nil {
		return httpapi.Caller{}, refuse(err.Error())
	}

	// A user of a host is one of the issuer's host, because only that node's socket can tell. Such a user comes without any
	// other credentials and without an address. A session of root is a token like any other.
	if by := st.Caller; strings.HasPrefix(by.Who, access.KindUnix+":") && (by.Who != access.RootSubject || by.Token == "") && (by.Token != "" || by.Certificate != "" || by.Address != "") {
		return httpapi.Caller{}, refuse("a user of a host has neither a token, nor a certificate, nor an address")
	}

	return httpapi.Caller{
		Who: st.Caller.Who, Token: st.Caller.Token, Certificate: st.Caller.Certificate, Address: st.Caller.Address, Forwarder: st.From,
	}, nil
}

// checkStream returns why the caller of a running stream may no longer read it: its token was deleted or has expired,
// its rights were reduced, or this node cannot tell. A stream that another node has forwarded ends when that node ends it.
func (s *server) checkStream(ctx context.Context, r *http.Request) error {
	if httpapi.CallerOf(r.Context()).Forwarder != "" {
		return nil
	}

	caller, err := s.findCaller(r, false)
	if err != nil {
		return err
	}

	return httpapi.RightsOf(r.Context()).CheckReader(ctx, caller)
}
