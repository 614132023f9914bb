package kv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

const (
	defaultQuota     = 8 << 30
	defaultRetention = 30_000
	defaultCompact   = time.Minute
	stopTimeout      = 250 * time.Millisecond
	helloTimeout     = 2 * time.Second
	slowRequest      = 10 * time.Second

	// Requests of group commit are large, 110 KB where these were measured, and etcd's defaults are made for small ones.
	// It keeps applied requests in memory for followers, of which there are none: after 3,200 requests the heap was
	// 360 MB with etcd's 5,000 entries, and 85 MB with these.
	catchUpEntries = 500
	// A start loads all requests since the last snapshot: 2.4 GB were allocated and 336 MB stayed, with these 1.3 GB and
	// 30 MB. A snapshot in between costs as much as one of the ten commits of the database in each second.
	snapshotEntries = 1000
)

// ServerConfig says how to run an etcd in this process.
type ServerConfig struct {
	// Dir keeps the data. It is created, private; one that other users may enter is refused unless it is empty or an
	// etcd's already: then it is made private.
	Dir string
	// Name is the member's; default "carillon". A directory keeps the name that it began with.
	Name string
	// QuotaBytes is how large the data may grow; default 8 GiB.
	QuotaBytes int64
	// CompactionRetention is how many revisions of history survive the compaction that comes every CompactionInterval;
	// defaults 30,000 and a minute. Who reads at an older revision, or watches from one, has to start anew.
	CompactionRetention int64
	CompactionInterval  time.Duration
	// CompactionAge keeps more than that: all revisions that are younger, as long as the data in use take no more than
	// half of the quota. How old those are that were there before a start is not known: they count as young as the start.
	CompactionAge time.Duration
	// Tick and Election are etcd's heartbeat interval and election timeout; 0 for its defaults, 100 ms and 1 s.
	Tick, Election time.Duration
	// PasswordCost is how hard it is to check the password of a user, 4 to 31; each step doubles it. 0 is etcd's, 10: some
	// 50 ms of processor time, and seconds with the race detector.
	PasswordCost uint
	// ListenClient are unix:///path or http://ip:port. The default is a socket in Dir that only this user may open,
	// or, where Dir is too long for a socket's path, in a private directory of os.TempDir. Whoever reaches an http
	// address may do anything: keep it on loopback, and know that other users of the host reach that.
	ListenClient []string
	// Peers makes it a member of several; nil: it is alone, and has no peer port.
	Peers *Peers
	// Waiting, if set, is told by StartServer which of the other members cannot be reached, while too few are there, and
	// nil at the end.
	Waiting func(missing []string)
	Logger  *zap.Logger // may be nil; etcd's warnings and errors go there
}

var errStopped = errors.New("it stopped while starting")

// Server is an etcd in this process: alone, or a member of several. It has no metrics and no pprof; clients outside the
// process reach it by gRPC on its socket. A failure that etcd calls fatal (a full or broken disk) ends the process.
type Server struct {
	cfg     ServerConfig
	lock    *fileutil.LockedFile
	etcd    *embed.Etcd
	client  *Client
	grpc    *grpc.Server
	wg      sync.WaitGroup
	listen  []listener
	peers   *peerServer // nil: none
	etcdLog sampled     // etcd's own logger

	compacting    sync.WaitGroup
	endCompacting context.CancelFunc

	done    chan struct{}
	fail    sync.Once
	err     error
	closing sync.Once
	closed  error
}

// StartServer starts etcd on cfg.Dir and returns when it serves: with Peers, when more than half of them are there. If
// another process has the directory, or another cluster's data are in it, it fails at once.
func StartServer(ctx context.Context, cfg ServerConfig) (_ *Server, err error) {
	cfg.Name = orDefault(cfg.Name, "carillon")
	cfg.QuotaBytes = orDefault(cfg.QuotaBytes, int64(defaultQuota))
	cfg.CompactionRetention = orDefault(cfg.CompactionRetention, int64(defaultRetention))
	cfg.CompactionInterval = orDefault(cfg.CompactionInterval, defaultCompact)
	s := &Server{cfg: cfg, done: make(chan struct{})}
	defer func() {
		if err != nil {
			err = fmt.Errorf("start etcd in %s: %w", cfg.Dir, errors.Join(err, s.Close()))
		}
	}()

	if err := s.claimDataDir(); err != nil {
		return nil, err
	}
	if err := s.checkData(); err != nil {
		return nil, err
	}
	if err := s.openListeners(); err != nil {
		return nil, err
	}

	conf := s.embedConfig()

	if cfg.Peers != nil {
		if err := s.withPeers(ctx, conf); err != nil {
			return nil, err
		}
	}

	if s.etcd, err = embed.StartEtcd(conf); err != nil {
		return nil, s.explainError(err)
	}

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
	s.client = Wrap(inProcess(s.etcd.Server), 0)
	s.servePeers()
	compacting, end := context.WithCancel(context.WithoutCancel(ctx))
	s.endCompacting = end
	s.compacting.Go(func() { s.runCompaction(compacting) })

	return s, nil
}

// Client is a client without a network between. It is closed with the server.
func (s *Server) Client() *Client { return s.client }

// Endpoint is where others reach the server, as etcdctl takes it: unix:///path or http://ip:port.
func (s *Server) Endpoint() string { return s.listen[0].endpoint }

// Done is closed when the server stops, asked or not; Err then says why.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err is nil while the server runs and after Close.
func (s *Server) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Close stops the server: clients get a quarter of a second to end their calls, watches are cut. It may be called
// several times.
func (s *Server) Close() error {
	s.closing.Do(func() { s.closed = s.close() })
	return s.closed
}

func (s *Server) close() error {
	s.finishWith(nil)

	if s.endCompacting != nil { // it reads the store, which must not be closed under it
		s.endCompacting()
		s.compacting.Wait()
	}

	var errs []error
	if s.client != nil {
		errs = append(errs, s.client.Close())
	}

	if s.grpc != nil {
		force := time.AfterFunc(stopTimeout, s.grpc.Stop)
		s.grpc.GracefulStop()
		force.Stop()
	}

	if s.etcd != nil {
		s.etcd.Close()
	}

	if s.peers != nil {
		errs = append(errs, s.peers.close())
	}

	s.etcdLog.logSuppressed()
	s.wg.Wait()

	for _, l := range s.listen {
		errs = append(errs, l.close())
	}

	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}

	return errors.Join(errs...)
}

func (s *Server) finishWith(err error) {
	s.fail.Do(func() {
		s.err = err
		close(s.done)
	})
}

// claimDataDir makes the directory ours alone: private, and locked. etcd's own locks would wait for ever, and only after it
// has removed the other's socket.
func (s *Server) claimDataDir() error {
	if err := privateDir(s.cfg.Dir); err != nil {
		return err
	}

	lock, err := fileutil.TryLockFile(filepath.Join(s.cfg.Dir, "carillon.lock"), os.O_WRONLY|os.O_CREATE, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return errors.New("another process uses the directory")
	}
	if err != nil {
		return err
	}

	s.lock = lock

	return nil
}

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
		return fmt.Errorf("the directory has mode %04o and holds other things: it must be private (chmod 700), or empty", info.Mode().Perm())
	}

	return os.Chmod(dir, 0o700)
}

// embedConfig describes a member without any listener of etcd's own: its peer listener, given a socket's path, would
// open an abstract socket, which every user of the host may enter, and its client listener takes seven seconds to stop
// while somebody watches.
func (s *Server) embedConfig() *embed.Config {
	c := embed.NewConfig()
	c.Name, c.Dir = s.cfg.Name, s.cfg.Dir
	c.QuotaBackendBytes = s.cfg.QuotaBytes
	c.SnapshotCatchUpEntries, c.SnapshotCount = catchUpEntries, snapshotEntries
	if s.cfg.Tick > 0 {
		c.TickMs = uint(s.cfg.Tick.Milliseconds())
	}

	if s.cfg.Election > 0 {
		c.ElectionMs = uint(s.cfg.Election.Milliseconds())
	}

	if s.cfg.PasswordCost > 0 {
		c.BcryptCost = s.cfg.PasswordCost
	}

	// etcd prints the whole request with these warnings: a batch is a hundred kilobytes, and comes just when there is no
	// time to spare.
	c.WarningApplyDuration, c.WarningUnaryRequestDuration = slowRequest, slowRequest
	c.ListenPeerUrls, c.ListenClientUrls = nil, nil
	c.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: "no-peers"}}
	c.InitialCluster = s.cfg.Name + "=" + noPeersURL
	c.AdvertiseClientUrls = nil
	for _, l := range s.listen {
		if u, err := url.Parse(l.endpoint); err == nil {
			c.AdvertiseClientUrls = append(c.AdvertiseClientUrls, *u)
		}
	}

	// What a new member says, about a port, a log-in, a schema and a first election that are as they should be; and what each
	// connection says when a peer comes or goes, of which "peer became inactive" tells.
	s.etcdLog = newSampled(orNop(s.cfg.Logger))
	s.etcdLog.Logger = quietLogger(s.etcdLog.Logger, "etcd", zap.WarnLevel,
		"Running http and grpc server on single port. This is not recommended for production.",
		"simple token is not cryptographically signed",
		"since there are still pending configuration changes to apply",
		"Failed to detect schema version", "failed to update storage version",
		"Failed to detect storage schema version. Please wait till wal snapshot before upgrading cluster.",
		"lost TCP streaming connection with remote peer", "closed TCP streaming connection with remote peer",
		"prober detected unhealthy status", "failed to find remote peer in cluster",
		"skipped attributes update of removed member", "setting up serving from embedded etcd failed.")
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(s.etcdLog.Logger)

	return c
}

func (s *Server) servePeers() {
	s.grpc = v3rpc.Server(s.etcd.Server, nil, nil,
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		// Until a connection has said hello, Close waits for it: not for gRPC's two minutes.
		grpc.ConnectionTimeout(helloTimeout))
	for _, l := range s.listen {
		s.wg.Go(func() {
			if err := s.grpc.Serve(l.Listener); err != nil && !errors.Is(err, net.ErrClosed) {
				s.finishWith(fmt.Errorf("serve %s: %w", l.endpoint, err))
			}
		})
	}

	s.wg.Go(func() {
		<-s.etcd.Server.StopNotify()

		select {
		case <-s.done: // it was asked to
		default:
			s.finishWith(s.explainError(errors.New("etcd stopped by itself")))
		}
	})
}
