package kv

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"
)

// reloadingCredentials are transport credentials that request their TLS configuration before each handshake. So a replaced CA or
// certificate takes effect with the next connection. It logs why a handshake failed, because gRPC reports the reason
// only to a call that happens to wait for a connection.
type reloadingCredentials struct {
	credentials.TransportCredentials // used for everything except handshakes
	config                           func() *tls.Config
	lastError                        *changedErrorLog // shared by all clones
}

// changedErrorLog logs an error when it first occurs or when it differs from the previous one.
type changedErrorLog struct {
	log *zap.Logger

	mu    sync.Mutex
	error string // the last error; empty after a success
}

// newReloadingCredentials returns credentials that use config for each handshake.
func newReloadingCredentials(config func() *tls.Config, log *zap.Logger) reloadingCredentials {
	return reloadingCredentials{TransportCredentials: credentials.NewTLS(config()), config: config, lastError: &changedErrorLog{log: log}}
}

// ClientHandshake implements credentials.TransportCredentials. A handshake that ends with its context is not logged.
func (s reloadingCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := credentials.NewTLS(s.config()).ClientHandshake(ctx, authority, raw)
	if ctx.Err() == nil {
		s.lastError.logOnce(raw.RemoteAddr(), err)
	}
	return c, info, err
}

func (s reloadingCredentials) Clone() credentials.TransportCredentials {
	return reloadingCredentials{TransportCredentials: s.TransportCredentials.Clone(), config: s.config, lastError: s.lastError}
}

// logOnce logs the error of a handshake, unless the previous one had the same error.
func (t *changedErrorLog) logOnce(at net.Addr, err error) {
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
