package kv

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"
)

// secured are transport credentials that ask for their configuration before each handshake, so that a CA or a
// certificate that was replaced takes effect with the next connection. It logs what a handshake failed with, once, as
// gRPC would only tell who happens to wait for a connection.
type secured struct {
	credentials.TransportCredentials // of no particular configuration
	config                           func() *tls.Config
	told                             *toldOnce
}

type toldOnce struct {
	log *zap.Logger

	mu    sync.Mutex
	error string
}

func newSecured(config func() *tls.Config, log *zap.Logger) secured {
	return secured{TransportCredentials: credentials.NewTLS(config()), config: config, told: &toldOnce{log: log}}
}

func (s secured) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := credentials.NewTLS(s.config()).ClientHandshake(ctx, authority, raw)
	if ctx.Err() == nil {
		s.told.logOnce(raw.RemoteAddr(), err)
	}
	return c, info, err
}

func (s secured) Clone() credentials.TransportCredentials {
	return secured{TransportCredentials: s.TransportCredentials.Clone(), config: s.config, told: s.told}
}

func (t *toldOnce) logOnce(at net.Addr, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if err == nil {
		t.error = ""
		return
	}

	if t.error != err.Error() {
		t.error = err.Error()
		t.log.Warn("connections to etcd are not encrypted", zap.Stringer("address", at), zap.Error(err))
	}
}
