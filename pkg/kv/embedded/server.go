package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/features"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/carillonhq/carillon/pkg/kv"
)

const (
	// The defaults of Config.
	defaultQuota     = 8 << 30
	defaultRetention = 30_000
	defaultCompact   = time.Minute
	// stopTimeout is how long Close waits for the calls of clients outside of the process.
	stopTimeout = 250 * time.Millisecond
	// helloTimeout is how long a connection may take for its HTTP/2 handshake.
	helloTimeout = 2 * time.Second
	// slowRequest is the duration from which etcd logs a request as slow.
	slowRequest = 10 * time.Second

	// catchUpEntries is how many applied requests etcd keeps in memory for followers. A single member has no
	// followers, and requests of group commit are large (110 KB in the measurement): after 3,200 requests the heap
	// had 360 MB with etcd's default of 5,000 entries, and 85 MB with this value.
	catchUpEntries = 500
	// snapshotEntries is the number of requests between two snapshots. etcd loads all requests since the last
	// snapshot when it starts. With its default, a start allocated 2.4 GB and kept 336 MB; with this value, 1.3 GB
	// and 30 MB. A snapshot costs as much as one of the ten commits of the database in each second.
	snapshotEntries = 1000
)

// Config holds the settings of an etcd in this process.
type Config struct {
	// Dir is the data directory. It is created with mode 0700. If it exists and other users have access to it, it
	// must be empty or contain the data of an etcd. Then its mode is set to 0700. Otherwise Start fails.
	Dir string
	// Name is the name of the member. The default is "carillon". The name of existing data cannot be changed.
	Name string
	// QuotaBytes is the maximum size of the data. The default is 8 GiB.
	QuotaBytes int64
	// CompactionRetention is how many revisions are kept by the compaction that runs every CompactionInterval. The
	// defaults are 30,000 and one minute. A client that reads at, or watches from, an older revision gets an error
	// and has to read the current state.
	CompactionRetention int64
	CompactionInterval  time.Duration
	// CompactionAge keeps all younger revisions in addition, while the data in use take at most half of the quota.
	// The age of revisions from before the start is not known. They count as young as the start.
	CompactionAge time.Duration
	// Tick and Election are the heartbeat interval and the election timeout. 0 means the defaults of etcd, 100 ms and
	// 1 s.
	Tick, Election time.Duration
	// PasswordCost is the cost of checking the password of a user, from 4 to 31. Each step doubles it. 0 means the
	// default of etcd, 10, which takes about 50 ms of processor time, and seconds with the race detector.
	PasswordCost uint
	// ListenClient are the addresses for clients outside of the process: unix:///path or http://ip:port. The default
	// is a socket in Dir that only this user can open. If Dir is too long for the path of a socket, it is in a
	// private directory of os.TempDir. Anybody who can reach an http address can read and write every key. So use
	// loopback only, and note that all users of the host can reach that.
	ListenClient []string
	// Peers makes the server a member of a cluster of several. If it is nil, the server has no other members and no
	// peer port.
	Peers *Peers
	// ForceNewCluster starts the data of a member of any cluster as the only member of that cluster. The data then never fit to the other
	// members again, so use it only for a copy.
	ForceNewCluster bool
	// Waiting, if set, is called by Start with the other members that cannot be reached, while too few are
	// running, and with nil at the end.
	Waiting func(missing []string)
	Logger  *zap.Logger // may be nil; receives the warnings and errors of etcd
}

// errStopped is the error if etcd stops before it serves requests.
var errStopped = errors.New("it stopped while starting")

// Server is an etcd in this process: the only member of its cluster, or one of several. It has no metrics and no
// pprof. Clients outside of the process use gRPC on its socket. A failure that etcd considers fatal (a full or broken
// disk) ends the process.
type Server struct {
	cfg     Config
	lock    io.Closer // the lock of the data directory
	etcd    *etcdserver.EtcdServer
	client  *kv.Client     // the client inside the process
	grpc    *grpc.Server   // serves the clients outside of the process
	wg      sync.WaitGroup // the goroutines that serve, and the one that waits for the end of etcd
	listen  []listener     // for clients outside of the process
	peers   *peerServer    // nil without Config.Peers
	etcdLog sampled        // the logger of etcd

	lastTerm uint64 // see LastTerm

	compacting    sync.WaitGroup     // the goroutine of runCompaction
	endCompacting context.CancelFunc // nil before that goroutine starts

	done    chan struct{} // closed when the server stops
	fail    sync.Once     // closes done
	err     error         // why the server stopped; set before done is closed
	closing sync.Once     // closes the server
	closed  error         // the result of Close
}

// Start starts etcd in cfg.Dir and returns when it serves requests. With cfg.Peers, that requires more than
// half of the members. If another process uses the directory, or if the directory contains the data of another
// cluster, it fails immediately. After an error nothing is left running.
func Start(ctx context.Context, cfg Config) (_ *Server, err error) {
	cfg.Name = cmp.Or(cfg.Name, "carillon")
	cfg.QuotaBytes = cmp.Or(cfg.QuotaBytes, int64(defaultQuota))
	cfg.CompactionRetention = cmp.Or(cfg.CompactionRetention, int64(defaultRetention))
	cfg.CompactionInterval = cmp.Or(cfg.CompactionInterval, defaultCompact)
	cfg.Logger = cmp.Or(cfg.Logger, zap.NewNop())
	s := &Server{cfg: cfg, done: make(chan struct{})}
	defer func() {
		if err != nil {
			err = fmt.Errorf("start etcd in %s: %w", cfg.Dir, errors.Join(err, s.Close()))
		}
	}()

	// The order matters: the lock comes before anything touches the data, the data are checked before etcd announces this
	// member to its cluster, and the sockets are opened before etcd starts, so that a taken address fails early.
	if err := s.claimDataDir(); err != nil {
		return nil, err
	}
	if err := s.checkData(); err != nil {
		return nil, err
	}
	if cfg.ForceNewCluster && s.hasData() {
		if err := s.commitLog(); err != nil {
			return nil, err
		}
	}
	if err := s.openListeners(); err != nil {
		return nil, err
	}

	conf := s.serverConfig()

	if cfg.Peers != nil {
		if err := s.withPeers(ctx, &conf); err != nil {
			return nil, err
		}
	}

	if s.etcd, err = etcdserver.NewServer(conf); err != nil {
		return nil, s.explainError(err)
	}

	s.etcd.Start()

	// The members need each other to become ready, so the peer port is served before that.
	if s.peers != nil {
		s.peers.serve()
	}

	if err := s.untilReady(ctx); err != nil {
		return nil, err
	}
	if err := s.promoteSelf(ctx); err != nil {
		return nil, err
	}

	s.etcdLog.logSuppressed()
	s.compareMembers()
	s.client = kv.Wrap(inProcess(s.etcd), 0)
	s.serveClients()
	compacting, end := context.WithCancel(context.WithoutCancel(ctx))
	s.endCompacting = end
	s.compacting.Go(func() { s.runCompaction(compacting) })

	return s, nil
}

// Client returns a client that uses no network. It is closed together with the server.
func (s *Server) Client() *kv.Client { return s.client }

// Endpoint returns the address for clients outside of the process, as etcdctl accepts it: unix:///path or
// http://ip:port.
func (s *Server) Endpoint() string { return s.listen[0].endpoint }

// Done returns a channel that is closed when the server stops, whether by Close or by itself. Err then returns the
// reason.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err returns the reason why the server stopped by itself. It returns nil while the server runs and after Close.
func (s *Server) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Close stops the server. Clients get a quarter of a second to finish their calls, and watches end immediately. It
// may be called more than once.
func (s *Server) Close() error {
	s.closing.Do(func() { s.closed = s.close() })
	return s.closed
}

// close releases what Start has started so far, which may be only a part of it, in the reverse order. It
// returns all errors.
func (s *Server) close() error {
	s.finishWith(nil)

	// The compaction reads the store, so it must end before the store is closed.
	if s.endCompacting != nil {
		s.endCompacting()
		s.compacting.Wait()
	}

	var errs []error
	// The client in this process ends first, because its calls use the store directly.
	if s.client != nil {
		errs = append(errs, s.client.Close())
	}

	if s.grpc != nil {
		// GracefulStop waits for open calls. Watches never end by themselves, so Stop cuts them after stopTimeout.
		force := time.AfterFunc(stopTimeout, s.grpc.Stop)
		s.grpc.GracefulStop()
		force.Stop()
	}

	if s.etcd != nil {
		s.etcd.Stop()
	}

	if s.peers != nil {
		errs = append(errs, s.peers.close())
	}

	s.etcdLog.logSuppressed()
	s.wg.Wait()

	for _, l := range s.listen {
		errs = append(errs, l.close())
	}

	// The lock is released last, so that another process cannot start on a directory that is still in use.
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}

	return errors.Join(errs...)
}

// finishWith marks the server as stopped, with the reason. Only the first call counts.
func (s *Server) finishWith(err error) {
	s.fail.Do(func() {
		s.err = err
		close(s.done)
	})
}

// claimDataDir creates the data directory, makes it private, and locks it. The locks of etcd itself are not
// sufficient: a second process would wait for them without limit, after it had removed the socket of the first.
func (s *Server) claimDataDir() error {
	if err := privateDir(s.cfg.Dir); err != nil {
		return err
	}

	var err error
	s.lock, err = LockDir(s.cfg.Dir)

	return err
}

// ErrLocked means that another process uses a data directory.
var ErrLocked = errors.New("another process uses the directory")

// LockDir locks a data directory, as Start does, so that no etcd starts in it until the result is closed. The directory must exist.
func LockDir(dir string) (io.Closer, error) {
	path := filepath.Join(dir, "carillon.lock")

	lock, err := fileutil.TryLockFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	switch {
	case errors.Is(err, fileutil.ErrLocked):
		return nil, ErrLocked
	case errors.Is(err, unix.EROFS):
		return lockReadOnly(path)
	case err != nil:
		return nil, err
	}

	return lock, nil
}

// lockReadOnly locks the lock file of a directory that cannot be written here, for readers. It may be possible to write it elsewhere.
func lockReadOnly(path string) (io.Closer, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}

	lock := unix.Flock_t{Type: unix.F_RDLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}

	return file, nil
}

// privateDir creates the directory with mode 0700, or makes an existing one private if that is safe (see
// Config.Dir).
func privateDir(dir string) error {
	if dir == "" {
		return errors.New("no data directory")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}

	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}

	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "member")); err != nil && len(entries) > 0 {
		return fmt.Errorf("the directory has mode %04o and contains other files: it must be private (chmod 700) or empty", info.Mode().Perm())
	}

	return os.Chmod(dir, 0o700)
}

// serverConfig returns the configuration of a server without other members. Literals without a comment are the defaults
// of the etcd command.
//
// The command and its package embed are not used: they add tracing, a gateway for JSON and listeners. Their peer listener,
// given the path of a socket, would open an abstract socket, to which every user of the host can connect. Their client
// listener takes seven seconds to stop while a client watches.
func (s *Server) serverConfig() config.ServerConfig {
	c := config.ServerConfig{
		Name: s.cfg.Name, DataDir: s.cfg.Dir,
		PeerURLs:           types.URLs{{Scheme: "unix", Host: "no-peers"}},
		InitialPeerURLsMap: types.URLsMap{s.cfg.Name: {{Scheme: "unix", Host: "no-peers"}}},
		NewCluster:         true, InitialClusterToken: "etcd-cluster",

		SnapshotCount: snapshotEntries, SnapshotCatchUpEntries: catchUpEntries,
		MaxSnapFiles: 5, MaxWALFiles: 5,
		BackendFreelistType: bbolt.FreelistMapType, QuotaBackendBytes: s.cfg.QuotaBytes,
		AutoCompactionMode: "periodic", // without a retention, it does nothing (see runCompaction)

		TickMs: 100, ElectionTicks: 10, InitialElectionTickAdvance: true, PreVote: true,
		StrictReconfigCheck: true, MaxLearners: 1,
		CompactHashCheckTime: time.Minute, DowngradeCheckTime: 5 * time.Second,

		MaxTxnOps: 128, MaxRequestBytes: 1.5 * 1024 * 1024, MaxConcurrentStreams: math.MaxUint32,
		AuthToken: "simple", TokenTTL: 300, BcryptCost: 10,

		// etcd logs the whole request with its warnings about slow requests. A request of group commit has a hundred
		// kilobytes, and the warnings would come when the machine is overloaded already.
		WarningApplyDuration: slowRequest, WarningUnaryRequestDuration: slowRequest,
		V2Deprecation: config.V2DeprDefault, Metrics: "basic",
	}

	c.ForceNewCluster = s.cfg.ForceNewCluster
	if s.cfg.Tick > 0 {
		c.TickMs = uint(s.cfg.Tick.Milliseconds())
	}

	if s.cfg.Election > 0 {
		c.ElectionTicks = int(uint(s.cfg.Election.Milliseconds()) / c.TickMs)
	}

	if s.cfg.PasswordCost > 0 {
		c.BcryptCost = s.cfg.PasswordCost
	}

	for _, l := range s.listen {
		if u, err := url.Parse(l.endpoint); err == nil {
			c.ClientURLs = append(c.ClientURLs, *u)
		}
	}

	// Drop the messages of a new member about a log-in, a schema and a first election, which are as intended. Also
	// drop the messages of each connection when a peer appears or disappears: "peer became inactive" is sufficient.
	// The error of a read-only transaction is also the answer to its caller, who reports it. Mostly it says that the
	// caller canceled the read: at each stop, etcd would log that as an error.
	s.etcdLog = newSampled(s.cfg.Logger)
	s.etcdLog.Logger = kv.QuietLogger(s.etcdLog.Logger, "etcd", zap.WarnLevel,
		"simple token is not cryptographically signed",
		"since there are still pending configuration changes to apply",
		"Failed to detect schema version", "failed to update storage version",
		"Failed to detect storage schema version. Please wait till wal snapshot before upgrading cluster.",
		"lost TCP streaming connection with remote peer", "closed TCP streaming connection with remote peer",
		"prober detected unhealthy status", "failed to find remote peer in cluster",
		"skipped attributes update of removed member",
		"unexpected error during readonly txn")
	c.Logger = s.etcdLog.Logger
	c.ServerFeatureGate = features.NewDefaultServerFeatureGate(s.cfg.Name, c.Logger)

	return c
}

// serveClients serves the clients outside of the process on the listeners of Config.ListenClient, and watches for
// an end of etcd.
func (s *Server) serveClients() {
	s.grpc = v3rpc.Server(s.etcd, nil, nil,
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		// Close waits for connections that are still in their handshake, by default up to two minutes.
		grpc.ConnectionTimeout(helloTimeout))
	for _, l := range s.listen {
		s.wg.Go(func() {
			if err := s.grpc.Serve(l.Listener); err != nil && !errors.Is(err, net.ErrClosed) {
				s.finishWith(fmt.Errorf("serve %s: %w", l.endpoint, err))
			}
		})
	}

	s.wg.Go(func() {
		<-s.etcd.StopNotify()

		select {
		case <-s.done: // by Close
		default:
			s.finishWith(s.explainError(errors.New("etcd stopped by itself")))
		}
	})
}

// Within each sampleInterval, only the first sampleLines entries of etcd's logger with the same level and message pass.
const (
	sampleInterval = time.Second
	sampleLines    = 5
)

// sampled is a logger that limits how often it repeats a message. etcd has loops without a pause: a restarted member
// whose log was behind wrote "failed to publish local member" thousands of times within a second. Suppressed entries
// are counted. The next entry that passes has the count in its field "suppressed", and logSuppressed logs the
// remaining count.
type sampled struct {
	*zap.Logger
	suppressed *atomic.Int64
}

// newSampled returns a sampled logger that writes to lg.
func newSampled(lg *zap.Logger) sampled {
	suppressed := &atomic.Int64{}
	hook := zapcore.SamplerHook(func(_ zapcore.Entry, decision zapcore.SamplingDecision) {
		if decision&zapcore.LogDropped != 0 {
			suppressed.Add(1)
		}
	})

	return sampled{suppressed: suppressed, Logger: lg.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(countingCore{c, suppressed}, sampleInterval, sampleLines, 0, hook)
	}))}
}

// logSuppressed logs how many entries were suppressed since the last entry with a count. It logs nothing if there are
// none.
func (s sampled) logSuppressed() {
	if s.Logger != nil && s.suppressed.Load() > 0 {
		s.Warn("repeated log lines were suppressed") // the core adds how many
	}
}

// countingCore adds the count of suppressed entries to the next entry that it writes.
type countingCore struct {
	zapcore.Core
	suppressed *atomic.Int64
}

func (c countingCore) With(fields []zapcore.Field) zapcore.Core {
	c.Core = c.Core.With(fields)
	return c
}

// Check adds this core to the entry if the core below accepts it, so that Write is called.
func (c countingCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Core.Check(e, nil) == nil {
		return ce
	}
	return ce.AddCore(e, c)
}

// Write adds the field "suppressed" if entries were suppressed since the last one.
func (c countingCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if n := c.suppressed.Swap(0); n > 0 {
		fields = append(slices.Clone(fields), zap.Int64("suppressed", n))
	}
	return c.Core.Write(e, fields)
}
