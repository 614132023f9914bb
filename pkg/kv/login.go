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

// ErrLogin is wrapped by the error of every call that needed a login which etcd refused, because name or password are
// wrong.
var ErrLogin = errors.New("etcd rejects the login")

// Denied reports whether etcd refused a call because the user lacks a grant, or because etcd requires a user and the
// client has none. Unlike ErrLogin, it does not mean that the password is wrong.
func Denied(err error) bool {
	switch etcdError(err) {
	case rpctypes.ErrPermissionDenied, rpctypes.ErrPermissionNotGranted, rpctypes.ErrUserEmpty:
		return true
	}
	return false
}

const (
	// loginRest is how long a refused password is not tried again. Each attempt costs etcd about 50 ms of processor
	// time.
	loginRest = time.Second
	// loginLook is how often the password is read again after a refusal, while calls wait for a new one.
	loginLook = 100 * time.Millisecond
	// loginTries is how often one call is sent at most, each time with a newer token than the one that was refused.
	loginTries = 3
	// loginLimit is the maximum time for which a call waits for a login.
	loginLimit = 5 * time.Second
)

// login keeps the token of a user of etcd, and requests another one when etcd does not accept it any more. A token
// becomes invalid when it has not been used for five minutes, when the member that issued it restarts, when a
// password changes, and in some configurations at a fixed age.
//
// It logs in before the first call. Without a token, etcd might accept that call for the user that a client
// certificate names, instead of the configured user.
//
// The etcd client can log in by itself. But it does so before each stream that it opens, and each renewal of a lease
// is a stream; it returns the refusal of a token to the caller of a write; and it never reads the password again.
type login struct {
	user     string
	password func() (string, error)
	auth     func(ctx context.Context, user, password string) (*clientv3.AuthenticateResponse, error)
	one      chan struct{} // one slot, held while a goroutine logs in

	mu              sync.Mutex
	began           bool      // the first login has succeeded
	token           string    // empty while authentication is disabled in etcd
	refused         error     // the refusal of the last login; nil after a success
	at              time.Time // when it was refused
	refusedPassword string    // the password that was refused
}

// newLogin returns a login for the user of cfg, or nil if cfg has no user.
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

// maxPassword is the maximum length of a password in bytes.
const maxPassword = 4096

// ReadPassword reads the password from a file that contains a single line, with or without a line end.
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
		return "", fmt.Errorf("%s must contain a password, on one line", file)
	}

	return password, nil
}

// loginError is the error of a refused login. It wraps ErrLogin, and notSent because the call that needed the login
// was not sent.
type loginError struct{ cause error }

func (e loginError) Error() string { return ErrLogin.Error() + ": " + e.cause.Error() }

// Unwrap makes Unknown return false for the error.
func (e loginError) Unwrap() []error { return []error{ErrLogin, notSent{e.cause}} }

// validToken returns the current token. It logs in if that has not happened yet.
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

// mayRenew reports whether a login is necessary: the given token is still the current one. If this password was
// refused a moment ago, it returns false and the refusal. If another goroutine has renewed the token, it returns
// false and nil.
func (l *login) mayRenew(token, password string) (may bool, refused error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.refused != nil && l.refusedPassword == password && time.Since(l.at) < loginRest {
		return false, l.refused
	}

	return !l.began || l.token == token, nil
}

// setToken stores the token of a successful login.
func (l *login) setToken(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token, l.refused, l.refusedPassword, l.began = token, nil, "", true
}

// noteRefused stores the refusal of a password.
func (l *login) noteRefused(password string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused, l.refusedPassword, l.at = err, password, time.Now()
}

// renewToken logs in, unless another goroutine has done so since the stale token was the current one. If etcd refuses
// the password, renewToken waits for another one, for at most loginLimit. An operator cannot change the password in
// etcd and in the file at the same moment.
func (l *login) renewToken(ctx context.Context, stale string) error {
	ctx, cancel := context.WithTimeout(ctx, loginLimit)
	defer cancel()

	var refused error
	for {
		err := l.renewOnce(ctx, stale)
		switch {
		case err != nil && refused != nil && ctx.Err() != nil:
			return refused // the reason why the time is over
		case !errors.Is(err, ErrLogin), !clock.Sleep(ctx, loginLook):
			return err
		}

		refused = err
	}
}

// renewOnce makes one attempt of renewToken. Only one goroutine logs in at a time; the others then find the new
// token.
func (l *login) renewOnce(ctx context.Context, stale string) error {
	select {
	case l.one <- struct{}{}:
		defer func() { <-l.one }()
	case <-ctx.Done():
		return notSent{ctx.Err()}
	}

	// While this goroutine waited for the slot, another one may have logged in. mayRenew detects that.
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
	case errors.Is(err, rpctypes.ErrAuthNotEnabled): // calls need no token until etcd refuses one without
		l.setToken("")
		return nil
	case errors.Is(err, rpctypes.ErrAuthFailed):
		err = loginError{fmt.Errorf("user %q: %w", l.user, err)}
		l.noteRefused(password, err)
		return err
	}

	return notSent{err} // the call that needed the login was not sent
}

// withToken adds the token to the metadata of a call.
func withToken(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
}

// authenticateMethod is the login itself, which needs no token.
const authenticateMethod = "/etcdserverpb.Auth/Authenticate"

// interceptUnary sends a call with the token. If etcd refuses the token, it sends the call again with a new one. That
// is safe for writes, because etcd checks the token before it processes the call.
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

// interceptStream opens a stream with the token. A stream reports the refusal of its token only when it receives; see
// tokenStream.
func (l *login) interceptStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	token, err := l.validToken(ctx)
	if err != nil {
		return nil, err
	}

	s, err := open(withToken(ctx, token), desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}

	return &tokenStream{ClientStream: s, login: l, token: token}, nil
}

// tokenStream is a stream that was opened with a token.
type tokenStream struct {
	grpc.ClientStream
	login *login
	token string
}

// RecvMsg ends the stream when etcd refuses its token, also if that concerns only one new watch. etcd checks each
// watch with the token of the stream, so no further watch could be opened on it. The watches that are open already
// resume on another stream, as after a lost connection.
func (s *tokenStream) RecvMsg(m any) error {
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

	return status.Error(codes.Aborted, "etcd no longer accepted the token")
}

// watchRefusedFor is refusedFor for the creation of a watch, whose refusal etcd reports as text.
func watchRefusedFor(token, reason string) bool {
	switch reason {
	case rpctypes.ErrGRPCInvalidAuthToken.Error(), rpctypes.ErrGRPCAuthOldRevision.Error(), rpctypes.ErrGRPCUserEmpty.Error():
		return true
	case rpctypes.ErrGRPCPermissionDenied.Error():
		return token == ""
	}

	return false
}

// refusedFor reports whether etcd refused a call because of its token, or because it had none, before it processed
// the call.
func refusedFor(token string, err error) bool {
	switch etcdError(err) {
	case rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision, rpctypes.ErrUserEmpty:
		return true
	case rpctypes.ErrPermissionDenied:
		// Authentication was disabled at the login and has been enabled since. Without a token, etcd used the user that a
		// client certificate names.
		return token == ""
	}

	return false
}
