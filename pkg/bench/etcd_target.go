package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// How to reach an embedded etcd.
const (
	transportDirect = "in-process"
	transportGRPC   = "grpc"
)

// etcdTargetConfig determines which etcd to use.
type etcdTargetConfig struct {
	Endpoints      []string // none: an embedded etcd
	User, Password string
	Transport      string // to an embedded etcd: in-process or grpc
	Dir            string // where temporary directories are created; "": the system's default
}

// etcdTarget is an etcd with a prefix that only this benchmark uses.
type etcdTarget struct {
	server *embedded.Server // nil: not an embedded etcd
	client *kv.Client
	cfg    kv.Config   // of clients over gRPC
	root   string      // of all keys of the benchmark; ends in '/'
	keys   record.Keys // of a cluster; limits are measured outside of it, so that reading the cluster back does not include them
	dir    string      // temporary; holds etcd's data and the executor's

	reached bool // etcd may contain keys of the benchmark
}

// openEtcdTarget starts or reaches etcd. The caller must call close, unless openEtcdTarget fails.
func openEtcdTarget(ctx context.Context, cfg etcdTargetConfig, log *zap.Logger) (_ *etcdTarget, err error) {
	s := &etcdTarget{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(ctx))
		}
	}()

	s.root = "/carillon-bench-" + task.NewUID() + "/"
	if s.keys, err = record.NewKeys(s.root + "cluster"); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp(cfg.Dir, "carillon-bench-"); err != nil {
		return nil, fmt.Errorf("temporary directory: %w", err)
	}

	s.cfg = cfg.clientConfig(log)
	if len(cfg.Endpoints) == 0 {
		s.server, err = embedded.Start(ctx, embedded.Config{
			Dir: s.dir + "/etcd", Logger: log,
			CompactionRetention: 1 << 40, // every revision is read back at the end
			// A single member has no elections to lose, but a request may take two election timeouts plus five
			// seconds. With the default, that would be too short on a busy machine.
			Election: 10 * time.Second,
		})
		if err != nil {
			return nil, err
		}

		s.cfg.Endpoints = []string{s.server.Endpoint()}
		if cfg.Transport == transportDirect {
			s.client = s.server.Client()
			return s, nil
		}
	}

	if s.client, err = s.dialClient(ctx); err != nil {
		return nil, err
	}
	if err = kv.CheckVersion(ctx, s.client); err != nil {
		return nil, err
	}

	s.reached = true

	return s, nil
}

// clientConfig returns the configuration of a client over gRPC.
func (c etcdTargetConfig) clientConfig(log *zap.Logger) kv.Config {
	return kv.Config{Endpoints: c.Endpoints, Username: c.User, Password: c.Password, CallTimeout: callLimit, Logger: log}
}

// dialClient returns another client over gRPC.
func (s *etcdTarget) dialClient(ctx context.Context) (*kv.Client, error) { return kv.Dial(ctx, s.cfg) }

// callLimit is generous, because a saturated etcd answers late. A benchmark that gave up after five seconds would
// measure nothing.
const callLimit = 20 * time.Second

// cleanUpFor is how long it may take to delete what a benchmark has written. A million tasks take a minute or two.
const cleanUpFor = 10 * time.Minute

// currentRevision returns etcd's current revision.
func (s *etcdTarget) currentRevision(ctx context.Context) (int64, error) {
	res, err := s.client.Get(ctx, s.keys.Cluster(), clientv3.WithKeysOnly())
	if err != nil {
		return 0, fmt.Errorf("read etcd's revision: %w", err)
	}
	return res.Header.Revision, nil
}

// deletePrefix deletes everything below a prefix, in portions that do not block etcd for others.
func (s *etcdTarget) deletePrefix(ctx context.Context, prefix string) error {
	const bite = 2000
	end := clientv3.GetPrefixRangeEnd(prefix)

	for {
		res, err := s.client.Get(ctx, prefix, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(bite))
		if err == nil && len(res.Kvs) == 0 {
			return nil
		}

		if err == nil {
			last := string(res.Kvs[len(res.Kvs)-1].Key)
			_, err = s.client.Delete(ctx, prefix, clientv3.WithRange(last+"\x00"))
		}

		if err != nil {
			return fmt.Errorf("delete what is left below %s: %w", prefix, err)
		}
	}
}

// close deletes what the benchmark has written, even if ctx has ended, and disconnects from etcd.
func (s *etcdTarget) close(ctx context.Context) error {
	interrupted := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpFor)
	defer cancel()

	var errs []error

	// The data of an embedded etcd is removed with its directory.
	if s.server == nil && s.reached {
		errs = append(errs, s.deletePrefix(ctx, s.root))
		if interrupted {
			errs = append(errs, s.eraseStragglers(ctx))
		}
	}

	if s.client != nil && (s.server == nil || s.client != s.server.Client()) {
		errs = append(errs, s.client.Close())
	}

	if s.server != nil {
		errs = append(errs, s.server.Close())
	}

	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}

	return errors.Join(errs...)
}

// eraseStragglers deletes what is written after an interruption: etcd may still execute requests whose caller has
// given up. It is done when nothing was found for a second.
func (s *etcdTarget) eraseStragglers(ctx context.Context) error {
	for quiet := 0; quiet < 5; quiet++ {
		if !clock.Sleep(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}

		left, err := s.client.Get(ctx, s.root, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return err
		}

		if left.Count > 0 {
			quiet = -1
			if err := s.deletePrefix(ctx, s.root); err != nil {
				return err
			}
		}
	}

	return nil
}
