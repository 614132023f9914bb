package kv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/carillonhq/carillon/pkg/clock"
)

// ErrLogin is what etcd refuses a user with: nobody has this name and password.
var ErrLogin = errors.New("etcd refuses the log-in")

// Denied says that etcd knows who asks, or asks for a name, and refuses what was asked for: a grant is missing.
func Denied(err error) bool {
	switch etcdError(err) {
	case rpctypes.ErrPermissionDenied, rpctypes.ErrPermissionNotGranted, rpctypes.ErrUserEmpty:
		return true
	}
	return false
}

const (
	// loginRest is how long a password that etcd has refused is not tried again: each try costs etcd some 50 ms of
	// processor time.
	loginRest = time.Second
	// loginLook is how often a password that was refused is read again while calls wait for another one.
	loginLook = 100 * time.Millisecond
	// loginTries is how often one call is sent, each time with a token that is newer than the one that was refused.
	loginTries = 3
	loginLimit = 5 * time.Second
)

// login keeps a user's token for etcd, and gets another when etcd does not know it any more: tokens end when they are not
// used for five minutes, with the member that gave them, when passwords change, and some at a fixed age.
//
// It logs in before the first call: etcd may take one without a token for the user that a certificate names.
//
// The etcd client could do it, but it logs in before each stream that it opens, and each renewal of a lease is one; it
// gives a refusal back to the caller of a write; and its password is the one that it began with.
type login struct {
	user     string
	password func() (string, error)
	auth     func(ctx context.Context, user, password string) (*clientv3.AuthenticateResponse, error)
	one      chan struct{} // has room for the one who logs in

	mu      sync.Mutex
	began   bool   // it has logged in
	token   string // "" while etcd has no users
	refused error  // by etcd, at the time below, with the password below
	at      time.Time
	wrong   string
}

// newLogin returns nil if cfg has no user.
func newLogin(cfg Config) *login {
	if cfg.Username == "" {
		return nil
	}

	l := &login{user: cfg.Username, password: func() (string, error) { return cfg.Password, nil }, one: make(chan struct{}, 1)}
	if cfg.PasswordFile != "" {
		l.password = func() (string, error) { return ReadPassword(cfg.PasswordFile) }
	}

	return l
}

const maxPassword = 4096

// ReadPassword reads a file that holds a password, in a line or without its end.
func ReadPassword(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}

	defer f.Close()

	b, err := io.ReadAll(io.LimitReader(f, maxPassword+1))
	if err != nil {
		return "", err
	}

	password := strings.TrimRight(string(b), "\r\n")
	if password == "" || len(password) > maxPassword || strings.ContainsAny(password, "\r\n") {
		return "", fmt.Errorf("%s holds no password, which is one line", file)
	}

	return password, nil
}

// loginError is ErrLogin, and definite: what was asked for is not done.
type loginError struct{ cause error }

func (e loginError) Error() string { return ErrLogin.Error() + ": " + e.cause.Error() }

func (e loginError) Unwrap() []error { return []error{ErrLogin, notSent{e.cause}} }

// validToken returns the current token.
func (l *login) validToken(ctx context.Context) (string, error) {
	l.mu.Lock()
	token, began := l.token, l.began
	l.mu.Unlock()

	if began {
		return token, nil
	}
	if err := l.renewToken(ctx, ""); err != nil {
		return "", err
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	return l.token, nil
}

// mayRenew says whether the token given is still the current one, and the password was not refused a moment ago.
func (l *login) mayRenew(token, password string) (may bool, refused error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.refused != nil && l.wrong == password && time.Since(l.at) < loginRest {
		return false, l.refused
	}

	return !l.began || l.token == token, nil
}

func (l *login) setToken(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token, l.refused, l.wrong, l.began = token, nil, "", true
}

func (l *login) noteRefused(password string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused, l.wrong, l.at = err, password, time.Now()
}

// renewToken logs in, unless somebody has since the token given was the current one. If that is refused it waits for another
// password, as long as the call may: passwords are changed in etcd and in files one after the other.
func (l *login) renewToken(ctx context.Context, stale string) error {
	ctx, cancel := context.WithTimeout(ctx, loginLimit)
	defer cancel()

	var refused error
	for {
		err := l.renewOnce(ctx, stale)
		switch {
		case err != nil && refused != nil && ctx.Err() != nil:
			return refused // which is why there was no time left
		case !errors.Is(err, ErrLogin), !clock.Sleep(ctx, loginLook):
			return err
		}

		refused = err
	}
}

func (l *login) renewOnce(ctx context.Context, stale string) error {
	select {
	case l.one <- struct{}{}:
		defer func() { <-l.one }()
	case <-ctx.Done():
		return notSent{ctx.Err()}
	}

	password, err := l.password()
	if err != nil {
		return loginError{fmt.Errorf("the password of user %q: %w", l.user, err)}
	}
	if may, refused := l.mayRenew(stale, password); !may {
		return refused
	}

	res, err := l.auth(ctx, l.user, password)
	switch {
	case err == nil:
		l.setToken(res.Token)
		return nil
	case errors.Is(err, rpctypes.ErrAuthNotEnabled):
		l.setToken("")
		return nil
	case errors.Is(err, rpctypes.ErrAuthFailed):
		err = loginError{fmt.Errorf("user %q: %w", l.user, err)}
		l.noteRefused(password, err)
		return err
	}

	return notSent{err} // a log-in changes nothing
}

func withToken(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
}

const authenticateMethod = "/etcdserverpb.Auth/Authenticate"

// interceptUnary sends a call with the token, and again with another one if etcd refuses that before it looks at the call.
func (l *login) interceptUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if method == authenticateMethod {
		return invoke(ctx, method, req, reply, cc, opts...)
	}

	for try := 1; ; try++ {
		token, err := l.validToken(ctx)
		if err != nil {
			return err
		}

		err = invoke(withToken(ctx, token), method, req, reply, cc, opts...)
		if !refusedFor(token, err) || try == loginTries {
			return err
		}
		if err := l.renewToken(ctx, token); err != nil {
			return err
		}
	}
}

// interceptStream opens a stream with the token. Streams tell of a refusal later: then there is another token for the next one.
func (l *login) interceptStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	token, err := l.validToken(ctx)
	if err != nil {
		return nil, err
	}

	s, err := open(withToken(ctx, token), desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}

	return &loggedIn{ClientStream: s, login: l, token: token}, nil
}

// loggedIn is a stream that was opened with a token.
type loggedIn struct {
	grpc.ClientStream
	login *login
	token string
}

// RecvMsg ends the stream when etcd refuses its token to a watch: etcd looks at the token that the stream began with, so
// that no other watch could be opened by it either. Those that are open already are resumed, as after a lost connection.
func (s *loggedIn) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	refused := refusedFor(s.token, err)
	if w, ok := m.(*etcdserverpb.WatchResponse); ok && err == nil && w.GetCanceled() {
		refused = watchRefusedFor(s.token, w.GetCancelReason())
	}

	if !refused {
		return err
	}
	if renewal := s.login.renewToken(s.Context(), s.token); renewal != nil {
		return renewal
	}

	return status.Error(codes.Aborted, "etcd did not know the token any more")
}

// watchRefusedFor is refusedFor a watch, of which etcd tells in words.
func watchRefusedFor(token, reason string) bool {
	switch reason {
	case rpctypes.ErrGRPCInvalidAuthToken.Error(), rpctypes.ErrGRPCAuthOldRevision.Error(), rpctypes.ErrGRPCUserEmpty.Error():
		return true
	case rpctypes.ErrGRPCPermissionDenied.Error():
		return token == ""
	}

	return false
}

// refusedFor says that etcd refused a call for its token, or for the lack of one, and did nothing of it.
func refusedFor(token string, err error) bool {
	switch etcdError(err) {
	case rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision, rpctypes.ErrUserEmpty:
		return true
	case rpctypes.ErrPermissionDenied: // to whom a certificate names: there were no users before
		return token == ""
	}

	return false
}
