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
	defaultCallTimeout = 5 * time.Second

	// keepAliveTime is the shortest interval that gRPC accepts. It also makes the kernel give up on data that stays
	// unacknowledged for keepAliveTimeout, so that a dead connection with traffic on it is noticed after 3 s.
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 3 * time.Second
)

// reconnect is how a connection is tried again. gRPC's default waits longer each
// time, up to two minutes: after an outage of some minutes a node stayed away for
// as long again. And an attempt that nobody answers takes 20 s by default.
var reconnect = grpc.ConnectParams{
	Backoff:           grpcbackoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
	MinConnectTimeout: 3 * time.Second,
}

// Config says how to reach etcd.
type Config struct {
	// Endpoints are host:port, http://host:port, https://host:port or unix:///path. At least one.
	Endpoints []string
	// Username is a user of etcd; with it goes a Password, or a PasswordFile, which is read at each log-in: a new password
	// takes effect when etcd refuses the former. A log-in that etcd refuses is ErrLogin, of whatever call needed it.
	Username, Password, PasswordFile string
	// TLS, if set, is asked for a configuration before each handshake; endpoints are https then. Without it, https
	// endpoints are verified by the system's CAs.
	TLS func() *tls.Config
	// CallTimeout is the deadline of every KV and Lease call that has none sooner; default 5 s.
	CallTimeout time.Duration
	// Logger may be nil.
	Logger *zap.Logger
}

// Client is an etcd client whose KV and Lease calls all have deadlines, and which shares one pulse among all that
// follow a range through it (see Follow). If it was made by Dial, its watches end when their stream breaks, and are not
// reopened behind the back of whoever listens. It is safe for concurrent use.
type Client struct {
	*clientv3.Client
	streams streams
	sight   watchHealth
}

// Dial returns a client of the etcd at cfg.Endpoints. It does not wait for etcd, and etcd may be down. ctx bounds the
// dialling only: the client lives until Close.
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

	options := []grpc.DialOption{grpc.WithChainStreamInterceptor(haltWatches), grpc.WithConnectParams(reconnect)}
	if cfg.TLS != nil {
		options = append(options, grpc.WithTransportCredentials(newSecured(cfg.TLS, orNop(cfg.Logger))))
	}

	l := newLogin(cfg)
	if l != nil {
		options = append(options, grpc.WithChainUnaryInterceptor(l.interceptUnary), grpc.WithChainStreamInterceptor(l.interceptStream))
	}

	c, err := clientv3.New(clientv3.Config{
		Endpoints:            cfg.Endpoints,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		// One attempt: a write that is sent twice may lose against its own first copy. bound.go repeats reads.
		MaxUnaryRetries: 1,
		// The send limit stays at 2 MiB, just what etcd accepts: a larger request then fails here, before it is
		// sent, which proves that nothing was written. The receive limit is already 2 GiB.
		Context:     context.WithoutCancel(ctx),
		DialOptions: options,
		Logger:      quiet(cfg.Logger, "etcd-client", zap.ErrorLevel),
	})
	if err != nil {
		return nil, fmt.Errorf("dial etcd at %v: %w", cfg.Endpoints, err)
	}

	c.KV = newRestoringKV(clientv3.RetryKVClient(c), c)

	if l != nil {
		l.auth = c.Authenticate
	}

	return Wrap(c, cfg.CallTimeout), nil
}

// Wrap puts deadlines on the KV and Lease calls of c, which it changes in place, and makes it a Client. A callTimeout
// of 0 means 5 s. A client is wrapped once.
func Wrap(c *clientv3.Client, callTimeout time.Duration) *Client {
	b := bound{timeout: orDefault(callTimeout, defaultCallTimeout)}
	c.KV = boundKV{KV: c.KV, bound: b}
	c.Lease = boundLease{Lease: c.Lease, bound: b}
	return &Client{Client: c, sight: newSight()}
}

// Close closes connections and watches. It is safe to call twice.
func (c *Client) Close() error {
	if err := c.Client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close etcd client: %w", err)
	}
	return nil
}

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}
