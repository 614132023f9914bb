package kv

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"
)

// secured are transport credentials that request their TLS configuration before each handshake. So a replaced CA or
// certificate takes effect with the next connection. It logs why a handshake failed, because gRPC reports the reason
// only to a call that happens to wait for a connection.
type secured struct {
	credentials.TransportCredentials // used for everything except handshakes
	config                           func() *tls.Config
	told                             *toldOnce // shared by all clones
}

// toldOnce logs an error when it first occurs or when it differs from the previous one.
type toldOnce struct {
	log *zap.Logger

	mu    sync.Mutex
	error string // the last error; empty after a success
}

// newSecured returns credentials that use config for each handshake.
func newSecured(config func() *tls.Config, log *zap.Logger) secured {
	return secured{TransportCredentials: credentials.NewTLS(config()), config: config, told: &toldOnce{log: log}}
}

// ClientHandshake implements credentials.TransportCredentials. A handshake that ends with its context is not logged.
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

// logOnce logs the error of a handshake, unless the previous one had the same error.
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
