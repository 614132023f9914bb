package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// The write patterns that are measured with etcd alone. They have the form of Carillon's writes.
const (
	limitPut      = "limit/put"           // one put in each request
	limitTextbook = "limit/fire_one"      // in each request: compare and put a state, put a run
	limitNested   = "limit/fire_nested"   // 60 nested transactions in one request: compare, put a run, put a watermark
	limitCommit   = "limit/fire_commit"   // a shard's commit: compare fences, watermark and 120 entries; put 120 runs and the watermark
	limitCycle    = "limit/fire_finish"   // such a commit, then two requests of 60 nested transactions: compare, delete the run, put its history
	limitCreate   = "limit/create"        // in each request: compare and put a spec and an entry
	limitSpawn    = "limit/fork_and_exec" // processes that end at once, without a record
)

const (
	limitCallers  = 256             // concurrent small requests
	limitInFlight = 8               // concurrent large requests
	siblingCount  = 60              // nested transactions in a request
	commitRuns    = 120             // with fences and watermark, about as many as 128 compares allow
	heldEntries   = 10 * commitRuns // of each caller: the tasks that its commits fire in turn
)

// limiter measures etcd alone, below a part of the prefix that it deletes afterwards.
type limiter struct {
	*etcdTarget
	sizes sizes
	took  time.Duration                    // for each pattern
	now   func(format string, args ...any) // shows the status
}

// measureShape measures the rate of one pattern. A fifth of the time before the measurement is for warming up.
func (l *limiter) measureShape(ctx context.Context, name string) (Result, error) {
	res := Result{Name: name}
	callers := limitInFlight
	if name == limitPut || name == limitTextbook || name == limitCreate {
		callers = limitCallers
	}

	root := fmt.Sprintf("%slimit/%s/", l.root, task.NewUID())
	var count atomic.Int64
	var failed sync.Once
	var err error
	stop, cancel := context.WithCancel(ctx)
	defer cancel()

	var wg sync.WaitGroup

	// Each caller repeats its request until the measurement ends or one of them fails.
	for i := range callers {
		one, perr := l.runCaller(ctx, name, fmt.Sprintf("%s%04d/", root, i))
		if perr != nil {
			cancel()
			wg.Wait()
			return res, fmt.Errorf("%s: %w", name, errors.Join(perr, l.deletePrefix(ctx, root)))
		}

		wg.Go(func() {
			for stop.Err() == nil {
				n, e := one(ctx)
				if e != nil {
					failed.Do(func() { err = e; cancel() })
					return
				}

				count.Add(int64(n))
			}
		})
	}

	warm := l.took / 5
	clock.Sleep(stop, warm)

	watch := startWatch(count.Load())
	for time.Since(watch.began) < l.took || count.Load() == watch.first { // at least one request
		if !clock.Sleep(stop, min(l.took, 200*time.Millisecond)) {
			break
		}
		l.now("%s  %s/s", name, formatNumber(watch.ratePerSecond(count.Load())))
	}

	// Fill in the result before the callers stop.
	watch.fillResult(count.Load(), &res)
	cancel()
	wg.Wait()

	if err == nil {
		err = ctx.Err()
	}

	if err != nil {
		return res, fmt.Errorf("%s: %w", name, err)
	}

	return res, l.deletePrefix(ctx, root)
}

// runCaller returns a function that makes one request of a pattern and returns how many operations that was. The
// keys that the pattern compares exist when runCaller returns.
func (l *limiter) runCaller(ctx context.Context, name, root string) (func(context.Context) (int, error), error) {
	c := &caller{limiter: l, root: root, run: makeValue(l.sizes.run), ended: makeValue(l.sizes.ended), mark: makeValue(l.sizes.mark),
		spec: makeValue(l.sizes.spec), entry: makeValue(l.sizes.entry)}

	if name == limitCommit || name == limitCycle {
		if err := c.writeFences(ctx); err != nil {
			return nil, err
		}
	}

	return map[string]func(context.Context) (int, error){
		limitPut: c.putOne, limitTextbook: c.fireTextbook, limitNested: c.fireNested, limitCommit: c.writeCommit, limitCycle: c.runLifecycle, limitCreate: c.createTask,
	}[name], nil
}

// makeValue returns a value of that many bytes.
func makeValue(bytes int) string { return strings.Repeat("v", bytes) }

// caller makes requests one after another, below its own prefix.
type caller struct {
	*limiter
	root                          string
	run, ended, mark, spec, entry string // the values to write

	n     int                 // for unique keys
	revs  [siblingCount]int64 // mod revisions of states and watermarks
	tasks [heldEntries]int64  // mod revisions of entries
	turn  int                 // the next entry to fire
}

// nextKey returns a new key, of the length of Carillon's keys.
func (c *caller) nextKey(kind string) string {
	c.n++
	return fmt.Sprintf("%s%s/bench/t%07d/20261120T220500.%09dZ-abcd", c.root, kind, c.n%1000, c.n)
}

// putOne makes the request of limitPut.
func (c *caller) putOne(ctx context.Context) (int, error) {
	_, err := c.client.Put(ctx, c.nextKey("runs"), c.run)
	return 1, err
}

// stateKey returns the key of a record that is rewritten again and again.
func (c *caller) stateKey(i int) string { return fmt.Sprintf("%sstate/%04d", c.root, i) }

// commitTxn commits a transaction whose comparisons must all succeed, nested ones included. It returns the
// revision.
func (c *caller) commitTxn(ctx context.Context, cmps []clientv3.Cmp, ops []clientv3.Op, otherwise ...clientv3.Op) (int64, error) {
	res, err := c.client.Txn(ctx).If(cmps...).Then(ops...).Else(otherwise...).Commit()
	switch {
	case err != nil:
		return 0, err
	case !res.Succeeded:
		return 0, fmt.Errorf("a comparison did not hold below %s", c.root)
	}

	for _, r := range res.Responses {
		if t := r.GetResponseTxn(); t != nil && !t.Succeeded {
			return 0, fmt.Errorf("a nested comparison did not hold below %s", c.root)
		}
	}

	return res.Header.Revision, nil
}

// fireTextbook makes the request of limitTextbook.
func (c *caller) fireTextbook(ctx context.Context) (int, error) {
	state := c.stateKey(0)
	rev, err := c.commitTxn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(state), "=", c.revs[0])},
		[]clientv3.Op{clientv3.OpPut(state, c.entry), clientv3.OpPut(c.nextKey("runs"), c.run)})
	c.revs[0] = rev

	return 1, err
}

// fireNested makes the request of limitNested.
func (c *caller) fireNested(ctx context.Context) (int, error) {
	var ops []clientv3.Op
	for i := range siblingCount {
		mark, run := c.stateKey(i), c.nextKey("runs")
		ops = append(ops, clientv3.OpTxn(
			[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(mark), "=", c.revs[i]), clientv3.Compare(clientv3.CreateRevision(run), "=", 0)},
			[]clientv3.Op{clientv3.OpPut(run, c.run), clientv3.OpPut(mark, c.mark)}, nil))
	}

	rev, err := c.commitTxn(ctx, nil, ops)

	for i := range c.revs {
		c.revs[i] = rev
	}

	return siblingCount, err
}

// taskKey returns the key of an entry.
func (c *caller) taskKey(i int) string { return fmt.Sprintf("%stasks/bench/t%07d", c.root, i) }

// writeFences writes the records that commits compare and do not change: fences and entries. They have their real
// size, because etcd reads the value of a key that it compares.
func (c *caller) writeFences(ctx context.Context) (err error) {
	for i := 0; i < heldEntries && err == nil; i += commitRuns {
		var ops []clientv3.Op
		for n := range commitRuns {
			ops = append(ops, clientv3.OpPut(c.taskKey(i+n), c.entry))
		}

		var rev int64
		rev, err = c.commitTxn(ctx, nil, ops)

		for n := range commitRuns {
			c.tasks[i+n] = rev
		}
	}

	if err == nil {
		c.revs[1], err = c.commitTxn(ctx, nil, []clientv3.Op{clientv3.OpPut(c.stateKey(1), c.mark), clientv3.OpPut(c.stateKey(2), c.entry)})
	}

	return err
}

// writeCommit makes the request of limitCommit.
func (c *caller) writeCommit(ctx context.Context) (int, error) {
	_, err := c.fireRuns(ctx)
	return commitRuns, err
}

// fireRuns writes a full commit of a shard, and returns the keys of its runs.
func (c *caller) fireRuns(ctx context.Context) (runs []string, err error) {
	mark, owner, node := c.stateKey(0), c.stateKey(1), c.stateKey(2)
	cmps := []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(owner), "=", c.revs[1]), clientv3.Compare(clientv3.CreateRevision(node), "=", c.revs[1]),
		clientv3.Compare(clientv3.ModRevision(mark), "=", c.revs[0]),
		clientv3.Compare(clientv3.CreateRevision(node), "=", c.revs[1]), // the node that gets the runs
	}
	var ops []clientv3.Op
	for range commitRuns {
		run := c.nextKey("runs")
		runs = append(runs, run)
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(c.taskKey(c.turn)), "=", c.tasks[c.turn]))
		ops = append(ops, clientv3.OpPut(run, c.run))
		c.turn = (c.turn + 1) % heldEntries
	}

	c.revs[0], err = c.commitTxn(ctx, cmps, append(ops, clientv3.OpPut(mark, c.mark)),
		clientv3.OpGet(owner), clientv3.OpGet(node), clientv3.OpGet(mark))

	return runs, err
}

// runLifecycle makes the requests of limitCycle.
func (c *caller) runLifecycle(ctx context.Context) (int, error) {
	runs, err := c.fireRuns(ctx)
	if err != nil {
		return 0, err
	}

	fired := c.revs[0]

	for some := range slices.Chunk(runs, siblingCount) {
		var ops []clientv3.Op
		for _, run := range some {
			ended := strings.Replace(run, "/runs/", "/history/", 1)
			ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(run), "=", fired)},
				[]clientv3.Op{clientv3.OpDelete(run), clientv3.OpPut(ended, c.ended)}, []clientv3.Op{clientv3.OpGet(run), clientv3.OpGet(ended)}))
		}

		if _, err := c.commitTxn(ctx, nil, ops); err != nil {
			return 0, err
		}
	}

	return len(runs), nil
}

// createTask makes the request of limitCreate.
func (c *caller) createTask(ctx context.Context) (int, error) {
	spec, entry := c.nextKey("tasks"), c.nextKey("shards")
	_, err := c.commitTxn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(spec), "=", 0), clientv3.Compare(clientv3.CreateRevision(entry), "=", 0)},
		[]clientv3.Op{clientv3.OpPut(spec, c.spec), clientv3.OpPut(entry, c.entry)})
	return 1, err
}

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
func (e *etcdTarget) dialClient(ctx context.Context) (*kv.Client, error) { return kv.Dial(ctx, e.cfg) }

// callLimit is generous, because a saturated etcd answers late. A benchmark that gave up after five seconds would
// measure nothing.
const callLimit = 20 * time.Second

// cleanUpFor is how long it may take to delete what a benchmark has written. A million tasks take a minute or two.
const cleanUpFor = 10 * time.Minute

// currentRevision returns etcd's current revision.
func (e *etcdTarget) currentRevision(ctx context.Context) (int64, error) {
	res, err := e.client.Get(ctx, e.keys.Cluster(), clientv3.WithKeysOnly())
	if err != nil {
		return 0, fmt.Errorf("read etcd's revision: %w", err)
	}
	return res.Header.Revision, nil
}

// deletePrefix deletes everything below a prefix, in portions that do not block etcd for others.
func (e *etcdTarget) deletePrefix(ctx context.Context, prefix string) error {
	const bite = 2000
	end := clientv3.GetPrefixRangeEnd(prefix)

	for {
		res, err := e.client.Get(ctx, prefix, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(bite))
		if err == nil && len(res.Kvs) == 0 {
			return nil
		}

		if err == nil {
			last := string(res.Kvs[len(res.Kvs)-1].Key)
			_, err = e.client.Delete(ctx, prefix, clientv3.WithRange(last+"\x00"))
		}

		if err != nil {
			return fmt.Errorf("delete what is left below %s: %w", prefix, err)
		}
	}
}

// close deletes what the benchmark has written, even if ctx has ended, and disconnects from etcd.
func (e *etcdTarget) close(ctx context.Context) error {
	interrupted := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpFor)
	defer cancel()

	var errs []error

	// The data of an embedded etcd is removed with its directory.
	if e.server == nil && e.reached {
		errs = append(errs, e.deletePrefix(ctx, e.root))
		if interrupted {
			errs = append(errs, e.eraseStragglers(ctx))
		}
	}

	if e.client != nil && (e.server == nil || e.client != e.server.Client()) {
		errs = append(errs, e.client.Close())
	}

	if e.server != nil {
		errs = append(errs, e.server.Close())
	}

	if e.dir != "" {
		errs = append(errs, os.RemoveAll(e.dir))
	}

	return errors.Join(errs...)
}

// eraseStragglers deletes what is written after an interruption: etcd may still execute requests whose caller has
// given up. It is done when nothing was found for a second.
func (e *etcdTarget) eraseStragglers(ctx context.Context) error {
	for quiet := 0; quiet < 5; quiet++ {
		if !clock.Sleep(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}

		left, err := e.client.Get(ctx, e.root, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return err
		}

		if left.Count > 0 {
			quiet = -1
			if err := e.deletePrefix(ctx, e.root); err != nil {
				return err
			}
		}
	}

	return nil
}
