package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/mask"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/executor/status"
	"github.com/carillonhq/carillon/executor/workdir"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/task"
)

// Config configures a Runner.
type Config struct {
	Node     string           // the node's name, for the environment of attempts
	Instance string           // the instance; names the directory of its working directories
	Dir      string           // the data directory
	Workdirs string           // where the working directories of attempts are; "" is below Dir
	Spool    *spool.Spool     // stores the output
	Guardian *guardian.Client // nil: none, for tests
	// DefaultUser is the user of processes whose tasks name none; "" is the daemon's own.
	DefaultUser string
	// Groups provides a control group for each attempt. If it is nil or has none, processes are
	// found in other ways.
	Groups *cgroup.Groups
	// Orphans, if set, are adopted and reaped: without groups, and by the first
	// process of a container.
	Orphans *proctree.Orphans
	Secrets Secrets // reads the secrets that env_from names; nil: the node has no key
	Policy  Policy  // what the node's administrator allows; nil: everything

	// StuckChanged, if set, is called when StuckStarts has changed. It does not block.
	StuckChanged func()

	Fake   Fake                       // if set, replaces processes, in tests
	Freeze func(*proctree.Tree) error // if set, replaces Tree.Freeze, in tests
	// EmptyLimit is the time limit for emptying a working directory after its attempt has ended; 0 means 2 s.
	// Tests on busy machines need more.
	EmptyLimit time.Duration

	Logger     *zap.Logger           // nil: none
	Registerer prometheus.Registerer // nil: none
}

// Runner runs attempts as processes. Any number of them may run at the same time.
type Runner struct {
	spawner  *spawner                   // forks all processes
	spool    *spool.Spool               // stores the output
	guardian *guardian.Client           // nil: none
	workdirs *workdir.Pool              // nil: attempts have no working directories
	statuses *status.Monitor            // reads the status files of running attempts
	groups   *cgroup.Groups             // nil or empty: attempts have no control group
	orphans  *proctree.Orphans          // nil: orphans do not become children of the daemon
	sweeper  proctree.Sweeper           // finds processes by their environment
	stuck    *stuckStarts               // counts starts that hang
	freeze   func(*proctree.Tree) error // nil: Tree.Freeze
	// lingering, if not 0, replaces lingerLimit, in tests.
	lingering    time.Duration
	policy       Policy  // nil: everything is allowed
	secrets      Secrets // nil: no secret can be read
	secretReader secretReader
	fake         Fake
	without      defaultAccount // of processes whose tasks name no user
	adminGroup   string         // task.AdminGroup, except in tests
	node         string
	log          *zap.Logger
}

// New returns a runner. Its only I/O is to open /dev/null and to mark the descriptors that this program inherited as
// close-on-exec, so that the processes that it starts do not inherit them.
func New(cfg Config) (*Runner, error) {
	log := cmp.Or(cfg.Logger, zap.NewNop())

	without, err := newDefaultAccount(cfg.DefaultUser)
	if err != nil {
		return nil, fmt.Errorf("default user: %w", err)
	}

	spawner, err := newSpawner()
	if err != nil {
		return nil, err
	}

	spawner.orphans = cfg.Orphans

	l := &Runner{
		spawner: spawner, spool: cfg.Spool, guardian: cfg.Guardian, statuses: status.NewMonitor(log), groups: cfg.Groups, orphans: cfg.Orphans,
		stuck: newStuckStarts(cfg.StuckChanged), freeze: cfg.Freeze, policy: cfg.Policy, secrets: cfg.Secrets, secretReader: newSecretReader(),
		fake: cfg.Fake, without: without, adminGroup: task.AdminGroup, node: cfg.Node, log: log,
	}
	if cfg.Fake == nil {
		// Attempts without processes need no directories.
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
			func() float64 { return float64(l.groups.Quarantined()) }))
	}

	return l, nil
}

// StuckStarts returns the number of starts that have taken more than startSlow, and of those that were given up
// and have not ended.
func (ru *Runner) StuckStarts() int { return int(ru.stuck.count.Load()) }

// Run serves RunAttempt until ctx ends. The caller must end ctx only after all attempts have ended. Run calls ready
// once, when attempts may be started, and returns when everything that it started has ended.
func (ru *Runner) Run(ctx context.Context, ready func()) {
	// The threads that fork end last, because the kernel kills the processes of a thread that ends.
	parent, stopSpawner := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSpawner()

	var helpers, spawners sync.WaitGroup
	spawners.Go(func() { ru.spawner.serveRequests(parent) })

	if ru.secrets != nil {
		for range secretReaders {
			helpers.Go(func() { ru.secretReader.serveRequests(ctx, ru.secrets) })
		}
	}

	if r := ru.workdirs; r != nil {
		tried := make(chan struct{})
		helpers.Go(func() { r.Run(ctx, sync.OnceFunc(func() { close(tried) })) })
		helpers.Go(func() { ru.statuses.Run(ctx) })

		// Wait for the pool, so that attempts that start at once have directories, too. Do not wait long: a disk that
		// does not respond must not keep the node from running attempts.
		select {
		case <-tried:
		case <-time.After(workdir.OpenTimeout):
			ru.log.Warn("attempts run without their own directory until the disk responds", zap.String("path", r.Path()))
		case <-ctx.Done():
		}
	}

	if o := ru.orphans; o != nil {
		if err := proctree.BecomeSubreaper(); err != nil {
			ru.log.Warn("processes that daemonize cannot be found", zap.Error(err))
		}
		helpers.Go(func() { o.Run(ctx) })
	}

	ready()
	<-ctx.Done()

	// Stop the parts in the reverse order of their dependencies.
	close(ru.secretReader.over)
	helpers.Wait()
	ru.workdirs.Close()
	stopSpawner()
	spawners.Wait()
}

// Attempt is an attempt to run, with callbacks for its progress. The callbacks are called from the attempt's
// goroutines and must not block.
type Attempt struct {
	task.Assigned
	Token int64 // the fencing token

	// Session is the number of the node's session to which the attempt belongs. If that session is not renewed for
	// MaxSilence, the guardian kills the attempt (G17).
	Session    int
	MaxSilence time.Duration

	MayStart     func() error            // called directly before the fork; an error, such as ErrTooLate, forbids it
	MayContinue  func() error            // only for HTTP: called directly before each write; an error, ErrTooLate, forbids it
	OnStarted    func(at time.Time)      // called when the program executes
	OnCheckpoint func(checkpoint string) // called when the attempt has reported a new checkpoint
	OnPause      func(PauseState)        // called when it was paused or resumed, or could not be paused
}

// RunAttempt runs one attempt from its preparation to its end. When it returns, no process of the attempt is left
// (G20), except a process that SIGKILL does not end; that is logged. Kills and pauses are passed through o.
func (ru *Runner) RunAttempt(a Attempt, o *Orders) Result {
	if ru.fake != nil {
		return ru.fake.runAttempt(a, o)
	}

	// The policy comes first, because it may forbid to read what env_from and stdin name. It is checked again for the program, and
	// directly before the fork.
	var hidden mask.Masker
	bound, err := withStepValues(&a, ru.node)
	if err == nil {
		bound, err = ru.applyPolicy(withArguments(bound))
	}
	if err == nil {
		bound, err = ru.withEnvFrom(bound, &hidden, a.MayStart, o)
	}

	if err != nil {
		return notStarted(err)
	}

	judge, err := ru.newPolicyJudge(bound)
	if err != nil {
		return notStarted(err)
	}

	stdin, err := ru.openStdin(bound, &hidden, a.MayStart, o)
	if err != nil {
		return notStarted(err)
	}

	prep, err := ru.prepareAttempt(bound, a.Token)
	prep.stdin = stdin
	if err != nil {
		prep.closeStdin()
		return notStarted(err)
	}

	prep.judge = judge
	prep.guarded.Session, prep.guarded.Silence = a.Session, a.MaxSilence
	prep.onStarted = a.OnStarted
	prep.mayStart = a.MayStart
	prep.onPause = func(s PauseState) {
		prep.status.SetPaused(!s.Since.IsZero())
		a.OnPause(s)
	}

	if a.Output.MasksSecrets() && !hidden.IsEmpty() {
		prep.hidden = &hidden
		prep.status.Mask(hidden.Apply)
	}

	prep.status.OnCheckpoint(a.OnCheckpoint)

	return ru.runPrepared(prep, o)
}

// StatusOf returns what the attempt of a run has reported, and false if no attempt of the run is running here.
func (ru *Runner) StatusOf(namespace, name, run string) (task.AttemptStatus, bool) {
	return ru.statuses.Of(namespace, name, run)
}

// Statuses returns what each running attempt has reported.
func (ru *Runner) Statuses() []task.AttemptStatus { return ru.statuses.All() }

// ErrTooLate means that an attempt was not started because its start deadline had passed, or because its node had no
// contact with etcd for too long.
var ErrTooLate = errors.New("not started: the node had lost contact with etcd, or the start was too late")
