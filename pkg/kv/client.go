package kv

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
)

const (
	// defaultCallTimeout is the deadline of a call if Config.CallTimeout is 0.
	defaultCallTimeout = 5 * time.Second

	// keepAliveTime is the interval between HTTP/2 pings on a connection. It is the shortest interval that gRPC
	// accepts. gRPC also sets the TCP user timeout to keepAliveTimeout, so the kernel closes a connection whose data
	// stay unacknowledged for 3 s. A dead connection with traffic on it is therefore detected after 3 s.
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 3 * time.Second
)

// connectParams configures the pauses between attempts to connect. By default gRPC doubles its pause up to two
// minutes, so after an outage of some minutes a node stayed away for as long again (G16). Also by default, a
// connection attempt that receives no answer takes 20 s.
var connectParams = grpc.ConnectParams{
	Backoff:           grpcbackoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
	MinConnectTimeout: 3 * time.Second,
}

// Config holds the settings of a connection to etcd.
type Config struct {
	// Endpoints has at least one address: host:port, http://host:port, https://host:port or unix:///path.
	Endpoints []string
	// Username is a user of etcd. It requires either Password or PasswordFile. The file is read at each
	// login, so a new password takes effect when etcd rejects the previous one. If etcd rejects a login, the
	// call that needed it returns ErrLogin.
	Username, Password, PasswordFile string
	// TLS returns the configuration for the next handshake. If it is set, all endpoints use TLS. If it is
	// nil, https endpoints are verified with the CAs of the system.
	TLS func() *tls.Config
	// CallTimeout is the deadline of every KV and Lease call whose context has no earlier one. The default is
	// 5 s.
	CallTimeout time.Duration
	// Logger may be nil.
	Logger *zap.Logger
}

// Client is an etcd client whose KV and Lease calls all have deadlines. All ranges that are followed through
// one client share its watch streams and their progress probes (see streams). The watches of a client that
// Dial returned end when their gRPC stream breaks, instead of being reopened by the etcd client (see
// haltWatches). A Client is safe for concurrent use.
type Client struct {
	*clientv3.Client
	streams streams
	health  watchHealth
}

// Dial returns a client of the etcd at cfg.Endpoints. It does not wait for a connection, so it succeeds while
// etcd is down. ctx applies to Dial only: the client works until Close is called.
func Dial(ctx context.Context, cfg Config) (*Client, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("dial etcd: no endpoints")
	}
	if (cfg.Username != "") != (cfg.Password != "" || cfg.PasswordFile != "") || cfg.Password != "" && cfg.PasswordFile != "" {
		return nil, errors.New("dial etcd: a username needs one password, and a password a username")
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("dial etcd: %w", err)
	}

	options := []grpc.DialOption{grpc.WithChainStreamInterceptor(haltWatches), grpc.WithConnectParams(connectParams)}
	if cfg.TLS != nil {
		options = append(options, grpc.WithTransportCredentials(newReloadingCredentials(cfg.TLS, orNop(cfg.Logger))))
	}

	l := newLogin(cfg)
	if l != nil {
		options = append(options, grpc.WithChainUnaryInterceptor(l.interceptUnary), grpc.WithChainStreamInterceptor(l.interceptStream))
	}

	c, err := clientv3.New(clientv3.Config{
		Endpoints:            cfg.Endpoints,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		// The etcd client makes one attempt only. If a write were sent twice, the second copy could fail its
		// compares because the first one succeeded. call_timeout.go repeats reads.
		MaxUnaryRetries: 1,
		// The send limit stays at its default of 2 MiB. A larger request fails in this process before it is
		// sent, which proves that nothing was written (see Unknown). The receive limit is already 2 GiB.
		Context:     context.WithoutCancel(ctx),
		DialOptions: options,
		Logger:      QuietLogger(cfg.Logger, "etcd-client", zap.ErrorLevel),
	})
	if err != nil {
		return nil, fmt.Errorf("dial etcd at %v: %w", cfg.Endpoints, err)
	}

	// Transactions bypass the slow copy of their comparisons (see comparisons.go).
	c.KV = NewKV(clientv3.RetryKVClient(c), c)

	if l != nil {
		l.auth = c.Authenticate
	}

	return Wrap(c, cfg.CallTimeout), nil
}

// Wrap adds deadlines to the KV and Lease calls of c, which it modifies, and returns it as a Client. A
// callTimeout of 0 means 5 s. Wrap must be called only once for each client.
func Wrap(c *clientv3.Client, callTimeout time.Duration) *Client {
	b := bound{timeout: orDefault(callTimeout, defaultCallTimeout)}
	c.KV = boundKV{KV: c.KV, bound: b}
	c.Lease = boundLease{Lease: c.Lease, bound: b}
	return &Client{Client: c, health: newWatchHealth()}
}

// Close closes the connections and ends the watches. It may be called more than once.
func (c *Client) Close() error {
	if err := c.Client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close etcd client: %w", err)
	}
	return nil
}

// orDefault returns v, or otherwise if v is the zero value.
func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}
