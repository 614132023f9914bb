package kv

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-semver/semver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
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

// ErrVersion is wrapped by the error of CheckVersion if Carillon does not support the version of etcd.
var ErrVersion = errors.New("this version of etcd is not supported")

// CheckVersion asks every endpoint for its version. It refuses versions before 3.6.14, and 3.7.0, because Carillon is
// neither written for nor tested with them. An endpoint that does not answer is ignored if another one answers. If
// none answers, CheckVersion returns their errors.
func CheckVersion(ctx context.Context, c *Client) error {
	endpoints := c.Endpoints()
	if len(endpoints) == 0 {
		endpoints = []string{""} // an in-process client has no endpoints, and ignores this argument
	}

	ctx, cancel := context.WithTimeout(ctx, defaultCallTimeout)
	defer cancel()

	var wg sync.WaitGroup

	refused, silent := make([]error, len(endpoints)), make([]error, len(endpoints))
	for i, ep := range endpoints {
		wg.Go(func() {
			resp, err := c.Status(ctx, ep)
			if err != nil {
				silent[i] = fmt.Errorf("etcd at %s: %w", orDefault(ep, "this process"), err)
				return
			}

			if err := VersionFault(resp.Version); err != nil {
				refused[i] = fmt.Errorf("%w: etcd at %s: %w", ErrVersion, orDefault(ep, "this process"), err)
			}
		})
	}

	wg.Wait()

	// One member with an unsupported version is enough to refuse the cluster.
	if err := errors.Join(refused...); err != nil {
		return err
	}

	for _, err := range silent {
		if err == nil {
			return nil
		}
	}

	return errors.Join(silent...)
}

// VersionFault returns the reason why Carillon does not accept an etcd of this version (see CheckVersion), or nil if
// it accepts it. The version has to be checked not only at the start: while Carillon runs, etcd may be replaced by an
// older version, or a member with another version may be added.
func VersionFault(version string) error {
	const needed = "Carillon requires 3.6.14 or later in the 3.6 series, or 3.7.1 or later"
	v, err := semver.NewVersion(version)
	if err != nil {
		return fmt.Errorf("version %.40q cannot be read; %s", version, needed)
	}

	tooOld := v.LessThan(semver.Version{Major: 3, Minor: 6, Patch: 14})
	if v.Major == 3 && v.Minor == 7 {
		tooOld = v.LessThan(semver.Version{Major: 3, Minor: 7, Patch: 1})
	}

	if tooOld {
		return fmt.Errorf("version %s is too old; %s", version, needed)
	}

	return nil
}

// QuietLogger returns a named logger for code of etcd. It drops entries below the level least, and entries whose message
// ends with one of the texts in noise, because these say nothing about the health of this process. The end is
// compared because some messages begin with the id of a member. A nil lg results in a logger that drops everything.
func QuietLogger(lg *zap.Logger, name string, least zapcore.Level, noise ...string) *zap.Logger {
	if lg == nil {
		return zap.NewNop()
	}

	return lg.Named(name).WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return quietCore{Core: c, least: least, noise: noise}
	}))
}

// quietCore implements QuietLogger.
type quietCore struct {
	zapcore.Core
	least zapcore.Level
	noise []string
}

func (c quietCore) Enabled(l zapcore.Level) bool { return l >= c.least && c.Core.Enabled(l) }

func (c quietCore) With(fields []zapcore.Field) zapcore.Core {
	c.Core = c.Core.With(fields)
	return c
}

// Check drops the entries that the core does not accept.
func (c quietCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if e.Level < c.least {
		return ce
	}

	for _, n := range c.noise {
		if strings.HasSuffix(e.Message, n) {
			return ce
		}
	}

	return c.Core.Check(e, ce)
}

// orNop returns lg, or a logger that drops everything if lg is nil.
func orNop(lg *zap.Logger) *zap.Logger {
	if lg == nil {
		return zap.NewNop()
	}
	return lg
}

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
func (r reloadingCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := credentials.NewTLS(r.config()).ClientHandshake(ctx, authority, raw)
	if ctx.Err() == nil {
		r.lastError.logOnce(raw.RemoteAddr(), err)
	}
	return c, info, err
}

func (r reloadingCredentials) Clone() credentials.TransportCredentials {
	return reloadingCredentials{TransportCredentials: r.TransportCredentials.Clone(), config: r.config, lastError: r.lastError}
}

// logOnce logs the error of a handshake, unless the previous one had the same error.
func (c *changedErrorLog) logOnce(at net.Addr, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if err == nil {
		c.error = ""
		return
	}

	if c.error != err.Error() {
		c.error = err.Error()
		c.log.Warn("connections to etcd are not encrypted", zap.Stringer("address", at), zap.Error(err))
	}
}
