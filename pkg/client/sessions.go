package client

import (
	"context"
	"net/http"
)

// SessionsService creates and ends sessions: the logins of browsers.
type SessionsService struct{ conn *connection }

// LoginPath is the path of the page on which people sign in.
const LoginPath = "/ui/login"

// LoginLinkPath is the path of the page on which a login link is used.
const LoginLinkPath = LoginPath + "/link"

// LoginLink is a login link that was just created. Its secret cannot be read again.
type LoginLink struct {
	NewToken
	Path string `json:"path" doc:"What to open in a browser, below the address of a node with the role api. It contains the secret, after a #, so that no server gets it in the address."`
}

// Create creates a session of the client's token. It ends after eight hours, or with the token.
func (s *SessionsService) Create(ctx context.Context) (NewToken, error) {
	var t NewToken
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/sessions"}, &t)

	return t, err
}

// End ends the session whose secret is the client's token.
func (s *SessionsService) End(ctx context.Context) error {
	return s.conn.doCall(ctx, call{method: http.MethodDelete, path: "/v1/sessions/current"}, nil)
}

// CreateLink creates a login link of the client's token: within ten minutes, it can become a session, once.
func (s *SessionsService) CreateLink(ctx context.Context) (LoginLink, error) {
	var l LoginLink
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/login-links"}, &l)

	return l, err
}

// UseLink creates the session of a login link. The client's token must be the secret of the link.
func (s *SessionsService) UseLink(ctx context.Context) (NewToken, error) {
	var t NewToken
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/login-links:use"}, &t)

	return t, err
}
