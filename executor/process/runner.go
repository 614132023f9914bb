package process

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/executor/status"
	"github.com/carillonhq/carillon/executor/workdir"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/task"
)

// Config says what a runner is for.
type Config struct {
	Node     string
	Instance string
	Dir      string           // the data directory
	Workdirs string           // where the working directories of attempts are; "" is below Dir
	Spool    *spool.Spool     // where output goes
	Guardian *guardian.Client // nil: none, for tests
	// Groups are the control groups of attempts, one each; nil, or of which there are
	// none: their processes are found in other ways.
	Groups *cgroup.Groups
	// Orphans, if set, are adopted and reaped: without groups, and by the first
	// process of a container.
	Orphans *proctree.Orphans
	Secrets Secrets // reads those that env_from names; nil: the node has no key
	Policy  Policy  // what the node's administrator allows; nil: all

	// StuckChanged, if set, is called when StuckStarts has changed. It does not block.
	StuckChanged func()

	Fake   Fake                       // if set, it takes the place of processes, in tests
	Freeze func(*proctree.Tree) error // stops the processes of an attempt; nil: Tree.Freeze. For tests
	// EmptyLimit is how long it may take to empty the working directory of an attempt when that has ended; 0 is 2 s.
	// For tests, on busy machines.
	EmptyLimit time.Duration

	Logger     *zap.Logger           // nil: none
	Registerer prometheus.Registerer // nil: none
}

// Runner runs attempts as processes. Any number of them may run at the same time.
type Runner struct {
	spawner  *spawner
	spool    *spool.Spool
	guardian *guardian.Client
	workdirs *workdir.Pool // nil: attempts have no working directories
	statuses *status.Monitor
	groups   *cgroup.Groups    // nil, or of which there are none: attempts have no control group
	orphans  *proctree.Orphans // nil: orphans are not the daemon's
	sweeper  proctree.Sweeper
	stuck    *stuckStarts
	freeze   func(*proctree.Tree) error // nil: the tree's own
	// lingering takes the place of lingerLimit, in tests; 0: it does not.
	lingering    time.Duration
	policy       Policy  // nil: none
	secrets      Secrets // nil: none can be read
	secretReader secretReader
	fake         Fake
	own          account // the daemon's
	node         string
	log          *zap.Logger
}

// New makes a runner, without any I/O but opening /dev/null. Of what this program inherited, no descriptor is
// open in the processes that it starts.
func New(cfg Config) (*Runner, error) {
	log := cmp.Or(cfg.Logger, zap.NewNop())

	spawner, err := newSpawner()
	if err != nil {
		return nil, err
	}

	spawner.orphans = cfg.Orphans

	l := &Runner{
		spawner: spawner, spool: cfg.Spool, guardian: cfg.Guardian, statuses: status.NewMonitor(log), groups: cfg.Groups, orphans: cfg.Orphans,
		stuck: newStuckStarts(cfg.StuckChanged), freeze: cfg.Freeze, policy: cfg.Policy, secrets: cfg.Secrets, secretReader: newSecretReader(),
		fake: cfg.Fake, own: ownAccount(), node: cfg.Node, log: log,
	}
	if cfg.Fake == nil {
		l.workdirs = workdir.NewPool(cmp.Or(cfg.Workdirs, filepath.Join(cfg.Dir, "rooms")), cfg.Dir, cfg.Instance, log)
		l.workdirs.EmptyLimit = cmp.Or(cfg.EmptyLimit, l.workdirs.EmptyLimit)
	}

	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(l.stuck.total, prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: "carillon_spawns_stuck", Help: "Attempts whose start hangs: the program has not started after 5 s, or the start was given up but has not ended."},
			func() float64 { return float64(l.StuckStarts()) }), prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: "carillon_workdirs_quarantined", Help: "Working directories of attempts that could not be emptied and are not reused."},
			func() float64 { return float64(l.workdirs.Quarantined()) }), prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: "carillon_cgroups_set_aside", Help: "Control groups that are not reused because they cannot be removed or because their processes survive SIGKILL."},
			func() float64 { return float64(l.groups.Aside()) }))
	}

	return l, nil
}

// StuckStarts is how many starts have taken more than some seconds, or could not be ended
// after they were given up.
func (l *Runner) StuckStarts() int { return int(l.stuck.count.Load()) }

// Run has attempts run until ctx ends, by when all of them must have ended. It calls ready once, when attempts may be
// started, and returns when all that it started has ended.
func (l *Runner) Run(ctx context.Context, ready func()) {
	// The thread that is the parent of all processes ends last: they would be killed with it.
	parent, stopSpawner := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSpawner()

	var helpers, spawners sync.WaitGroup
	spawners.Go(func() { l.spawner.run(parent) })

	if l.secrets != nil {
		for range secretReaders {
			helpers.Go(func() { l.secretReader.serveRequests(ctx, l.secrets) })
		}
	}

	if r := l.workdirs; r != nil {
		tried := make(chan struct{})
		helpers.Go(func() { r.Run(ctx, sync.OnceFunc(func() { close(tried) })) })
		helpers.Go(func() { l.statuses.Run(ctx) })

		select { // those that start at once are to have directories, too
		case <-tried:
		case <-time.After(workdir.OpenPatience):
			l.log.Warn("attempts run without their own directory until the disk responds", zap.String("path", r.Path()))
		case <-ctx.Done():
		}
	}

	if o := l.orphans; o != nil {
		if err := proctree.BecomeSubreaper(); err != nil {
			l.log.Warn("processes that daemonize cannot be found", zap.Error(err))
		}
		helpers.Go(func() { o.Run(ctx) })
	}

	ready()
	<-ctx.Done()

	close(l.secretReader.over)
	helpers.Wait()
	l.workdirs.Close()
	stopSpawner()
	spawners.Wait()
}

// Attempt is an attempt that is to run, and who is told of it. The functions are called from the attempt's
// goroutines, and must not block.
type Attempt struct {
	task.Assigned
	Token int64 // the fencing token

	// Session is which of the node's sessions the attempt belongs to, and MaxSilence is how long the guardian lets the
	// attempt live after the last renewal of that.
	Session    int
	MaxSilence time.Duration

	MayStart     func() error // is asked directly before the fork; an error, such as ErrTooLate, forbids it
	OnStarted    func(at time.Time)
	OnCheckpoint func(checkpoint string)
	OnPause      func(PauseState) // it stands still, goes on, or cannot stand still
}

// RunAttempt sees one attempt from its preparation to its end. When it returns, nothing is left of the attempt.
func (l *Runner) RunAttempt(a Attempt, o *Orders) Result {
	if l.fake != nil {
		return l.fake.runAttempt(a, o)
	}

	bound, err := l.applyPolicy(a.Assigned)
	if err == nil {
		bound, err = l.withEnvFrom(bound, a.MayStart, o)
	}

	if err != nil {
		return notStarted(err)
	}

	judge, err := l.newPolicyJudge(bound)
	if err != nil {
		return notStarted(err)
	}

	what, err := l.prepareAttempt(bound, a.Token)
	if err != nil {
		return notStarted(err)
	}

	what.judge = judge
	what.guarded.Session, what.guarded.Silence = a.Session, a.MaxSilence
	what.onStarted = a.OnStarted
	what.mayStart = a.MayStart
	what.onPause = func(s PauseState) {
		what.status.SetPaused(!s.Since.IsZero())
		a.OnPause(s)
	}

	what.status.OnCheckpoint(a.OnCheckpoint)

	return l.runPrepared(what, o)
}

// StatusOf is what the attempt of a run says of itself that runs here; false if none does.
func (l *Runner) StatusOf(namespace, name, run string) (task.AttemptStatus, bool) {
	return l.statuses.Of(namespace, name, run)
}

// Statuses are those of all attempts that run here.
func (l *Runner) Statuses() []task.AttemptStatus { return l.statuses.All() }

// ErrTooLate means that it was too late for an attempt to start, or that its node must not start it any more.
var ErrTooLate = errors.New("not started: the node had lost touch with etcd, or it was too late for that")
