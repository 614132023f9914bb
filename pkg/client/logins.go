package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/carillonhq/carillon/pkg/task"
)

// LoginCallbackPath returns the path at which the browser arrives with the answer of a provider. Each provider has a path of
// its own, so that the answer of one is not taken for that of another (RFC 9700, section 4.4).
func LoginCallbackPath(provider string) string {
	return LoginPath + "/oidc/" + url.PathEscape(provider) + "/callback"
}

// LoginsService signs people in with the OpenID Connect providers of a cluster. Its requests need no token.
type LoginsService struct{ conn *connection }

// The codes of problems of logins, in addition to CodeUnauthorized and CodeForbidden.
const (
	CodeProviderAway  = "provider_away"  // the provider does not answer: try again later
	CodeProviderSetup = "provider_setup" // the settings of the cluster and those of the provider do not fit together
)

// LoginProvider is an OpenID Connect provider with which people can sign in.
type LoginProvider struct {
	Name    string `json:"name" doc:"The name in subjects: user:NAME/…."`
	Display string `json:"display" doc:"The name for people."`
	Device  bool   `json:"device" doc:"Whether it supports logins from the command line."`
	Problem string `json:"problem,omitempty" doc:"Why nobody can sign in with it now."`
}

// WebLoginRequest begins a login in a browser.
type WebLoginRequest struct {
	Provider string `json:"provider" doc:"The name of a provider."`
	ReturnTo string `json:"return_to,omitempty" doc:"The path that the last answer of the login repeats."`
}

// WebLogin is a login in a browser that has begun.
type WebLogin struct {
	URL   string    `json:"url" doc:"Where the browser goes."`
	State string    `json:"state" doc:"What finishes the login, together with the provider's answer. It must stay in this browser."`
	Ends  task.Time `json:"ends" doc:"When the login must be finished."`
}

// WebLoginAnswer finishes a login in a browser.
type WebLoginAnswer struct {
	Provider string `json:"provider" doc:"The provider in whose path the browser has arrived."`
	State    string `json:"state" doc:"The state of the login that has begun; empty if the browser has none."`
	Answer   string `json:"answer" doc:"The query with which the provider has sent the browser back."`
}

// WebSession is the session of a login in a browser.
type WebSession struct {
	NewToken
	ReturnTo string `json:"return_to,omitempty" doc:"The path that the request to begin the login has given."`
}

// DeviceLoginRequest begins a login from the command line.
type DeviceLoginRequest struct {
	Provider string `json:"provider" doc:"The name of a provider."`
}

// DeviceLogin is a login from the command line that has begun.
type DeviceLogin struct {
	Handle      string    `json:"handle" doc:"What polls the login. It contains secrets."`
	Code        string    `json:"code" doc:"What the person enters on the page."`
	Page        string    `json:"page" doc:"The page of the provider on which the person confirms the login."`
	PageForCode string    `json:"page_for_code,omitempty" doc:"The page with the code in it."`
	Interval    int       `json:"interval" doc:"How many seconds to wait before each poll."`
	Ends        task.Time `json:"ends" doc:"When the login must be confirmed."`
}

// DevicePoll asks whether a login from the command line is confirmed.
type DevicePoll struct {
	Handle string `json:"handle" doc:"The handle of the login that has begun."`
}

// DeviceSession is the session of a login from the command line, once the login is confirmed.
type DeviceSession struct {
	Pending bool      `json:"pending,omitempty" doc:"The login is not confirmed yet."`
	Slower  bool      `json:"slower,omitempty" doc:"Wait five seconds longer before each further poll."`
	Session *NewToken `json:"session,omitempty" doc:"The session, once the login is confirmed."`
}

// Providers returns the providers of the cluster.
func (s *LoginsService) Providers(ctx context.Context) ([]LoginProvider, error) {
	var l List[LoginProvider]
	err := s.conn.doCall(ctx, call{method: http.MethodGet, path: "/v1/login/providers"}, &l)

	return l.Items, err
}

// BeginWeb begins a login in a browser.
func (s *LoginsService) BeginWeb(ctx context.Context, r WebLoginRequest) (WebLogin, error) {
	var l WebLogin
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/login/web", body: r}, &l)

	return l, err
}

// FinishWeb finishes a login in a browser. provider is the one in whose path the browser has arrived, state is WebLogin.State,
// and answer the query with which the provider has sent the browser back.
func (s *LoginsService) FinishWeb(ctx context.Context, provider, state string, answer url.Values) (WebSession, error) {
	var w WebSession
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/login/web:finish", body: WebLoginAnswer{Provider: provider, State: state, Answer: answer.Encode()}}, &w)

	return w, err
}

// BeginDevice begins a login from the command line.
func (s *LoginsService) BeginDevice(ctx context.Context, provider string) (DeviceLogin, error) {
	var l DeviceLogin
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/login/device", body: DeviceLoginRequest{Provider: provider}}, &l)

	return l, err
}

// PollDevice asks once whether a login from the command line is confirmed.
func (s *LoginsService) PollDevice(ctx context.Context, handle string) (DeviceSession, error) {
	var d DeviceSession
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/login/device:poll", body: DevicePoll{Handle: handle}}, &d)

	return d, err
}

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
	URL  string `json:"url,omitempty" doc:"The same with the address of the node that answers. Absent while its API listens on no address that a browser can open."`
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

// CreateLink creates a login link of the client's token: within ten minutes, it can become a session, once. Root needs no
// token over the unix socket of a node; the link, and its session of an hour, are valid at this node only.
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
