package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/wake"
)

// The executor's defaults.
const (
	DefaultFinishers     = 512
	DefaultMaxUnfinished = 10_000
)

const (
	look        = 500 * time.Millisecond // interval at which all attempts are checked
	markAfter   = time.Second            // "running" is recorded only for attempts that last longer
	writers     = 64                     // maximum number of adoptions, marks and hand-backs in flight
	writeLimit  = 5 * time.Second        // time limit of one of these writes
	retryWrite  = 500 * time.Millisecond
	retryFinish = 200 * time.Millisecond
	patience    = 10 * time.Second // how long an event of the watch may be in flight
	reread      = time.Minute      // interval between lists of the inbox, in case the watch loses a change
	mostGrace   = 5 * time.Second  // maximum grace period when the node is silent or stopping
	stopLimit   = 10 * time.Second
)

// Config configures an Executor.
type Config struct {
	Node     string
	Instance string // the executor starts and adopts only attempts of this instance
	Slots    int    // maximum number of processes at the same time; at least 1
	Dir      string // the data directory: the spool is in it
	Workdirs string // where the working directories of attempts are; "" is below Dir. See workdir.Root
	Inbox    Inbox
	Guardian *guardian.Client // nil: no guardian, for tests
	Spool    spool.Config
	// Groups provides a control group for each attempt. If it is nil or has none, processes
	// are found in other ways; see package proctree.
	Groups *cgroup.Groups
	// Orphans, if set, are adopted and reaped: without groups, and by the first
	// process of a container.
	Orphans *proctree.Orphans

	// Secrets reads the secrets that env_from names; nil if the node has no key.
	Secrets process.Secrets
	// Policy is what the node's administrator allows; nil allows everything.
	Policy process.Policy

	// Dead reports whether an instance is known to be dead with all its processes,
	// in addition to Inbox.Cleared; nil means that none is.
	Dead func(instance string) bool

	Finishers     int // maximum number of results being written at the same time; 0 is DefaultFinishers
	MaxUnfinished int // number of unrecorded results at which starts pause; 0 is DefaultMaxUnfinished

	// Fake, if set, takes the place of processes.
	Fake process.Fake
	// Obeyed, if set, is called when Froze has changed. It does not block.
	Obeyed func()
	// StuckChanged, if set, is called when StuckStarts has changed. It does not block.
	StuckChanged func()
	// Boot is a clock that counts suspend; nil is the host's CLOCK_BOOTTIME.
	Boot func() time.Duration

	Logger     *zap.Logger           // nil: none
	Registerer prometheus.Registerer // nil: none

	freeze     func(*proctree.Tree) error // see process.Config; for tests
	emptyLimit time.Duration              // the same
}

// Session is one presence of the node in the cluster: the create revision of its key, and when
// the lease of that key was last renewed.
type Session struct {
	Fence kv.Fence
	// LastRenewal is when the last acknowledged renewal was sent, with a
	// monotonic reading. It is called after the session's end, too.
	LastRenewal func() time.Time
	// TTL is how long the session is certain to last after a renewal; 0 disables the check.
	// After that it may have expired, and others may consider the node gone, so the node
	// starts nothing until a renewal succeeds.
	TTL time.Duration
}

// Executor runs the attempts in one node's inbox.
type Executor struct {
	cfg      Config
	log      *zap.Logger
	metrics  metrics
	spool    *spool.Spool
	runner   *process.Runner
	reread   time.Duration // between lists of the inbox
	patience time.Duration // how long an event may be on its way
	clocks   clocks

	runAttempt func(process.Attempt, *process.Orders) process.Result // runner.RunAttempt, except in tests

	batches chan batch
	pokes   wake.Signal
	left    chan struct{} // closed when Run has returned

	mu   sync.Mutex
	mail mail

	free, running, beats, froze atomic.Int64

	state    // owned by the goroutine of Run
	toRecord lane[*ending]
	toWrite  lane[job]
}

// batch is a list or some events of the inbox, and a channel for the result of applying it.
type batch struct {
	store.InboxBatch
	session int
	taken   chan error
}

// mail is what other goroutines have left for the loop since it last read its mail. Its size
// is bounded by the number of attempts in the inbox.
type mail struct {
	session  *Session
	recorded []*ending // ends that finishers tried to record, successfully or not
	news     []func()  // reports of attempts and writers, as functions that the loop calls
	drain    *bool
	stop     bool // kill what still runs
	waiting  []chan struct{}
}

// New returns an executor that does nothing until Run is called. Its only I/O is to open
// /dev/null. It fails if a required setting is missing or Slots is less than 1.
func New(cfg Config) (*Executor, error) {
	switch {
	case cfg.Node == "" || cfg.Instance == "" || cfg.Dir == "" || cfg.Inbox == nil:
		return nil, errors.New("executor: node, instance, directory and inbox are required")
	case cfg.Slots < 1:
		return nil, fmt.Errorf("executor: %d slots: at least 1 is needed", cfg.Slots)
	}

	cfg.Finishers = cmp.Or(cfg.Finishers, DefaultFinishers)
	cfg.MaxUnfinished = cmp.Or(cfg.MaxUnfinished, DefaultMaxUnfinished)
	if cfg.Dead == nil {
		cfg.Dead = func(string) bool { return false }
	}

	log := cmp.Or(cfg.Logger, zap.NewNop()).Named("executor")
	cfg.Spool.Dir, cfg.Spool.Logger, cfg.Spool.Registerer = cfg.Dir, log, cfg.Registerer
	output := spool.New(cfg.Spool)
	runner, err := process.New(process.Config{
		Node: cfg.Node, Instance: cfg.Instance, Dir: cfg.Dir, Workdirs: cfg.Workdirs, Spool: output,
		Guardian: cfg.Guardian, Groups: cfg.Groups, Orphans: cfg.Orphans, Secrets: cfg.Secrets, Policy: cfg.Policy,
		StuckChanged: cfg.StuckChanged, Fake: cfg.Fake, Freeze: cfg.freeze, EmptyLimit: cfg.emptyLimit,
		Logger: log, Registerer: cfg.Registerer,
	})
	if err != nil {
		return nil, fmt.Errorf("executor: %w", err)
	}

	e := &Executor{
		cfg: cfg, log: log, spool: output, runner: runner, runAttempt: runner.RunAttempt,
		reread: reread, patience: patience,
		clocks:  clocksOf(cfg.Boot),
		batches: make(chan batch), pokes: wake.NewSignal(),
		left: make(chan struct{}), state: newState(),
	}
	e.toRecord.jobs, e.toWrite.jobs = make(chan *ending, cfg.Finishers), make(chan job, writers)
	e.metrics = newMetrics(e, cfg.Registerer)
	e.free.Store(int64(cfg.Slots))

	return e, nil
}

// Spool returns the spool that holds the output of this node's attempts.
func (e *Executor) Spool() *spool.Spool { return e.spool }

// Free returns the number of slots that are neither in use nor claimed by attempts that wait
// in the inbox.
func (e *Executor) Free() int { return int(e.free.Load()) }

// Running returns the number of attempts that have a process or are being started.
func (e *Executor) Running() int { return int(e.running.Load()) }

// StuckStarts returns the number of starts that hang: those that have taken more than a few
// seconds, and those that were given up and have not ended.
func (e *Executor) StuckStarts() int { return e.runner.StuckStarts() }

// Joined passes a new session to the executor. The daemon calls it after every join. The inbox
// is listed again, and attempts from before the join are adopted. Nothing starts before the
// first call.
func (e *Executor) Joined(s Session) { e.postMail(func(m *mail) { m.session = &s }) }

// Drain starts nothing new, hands back attempts that have not started, and waits for the
// others until ctx ends. Then it kills them: they end as failed with task.ReasonShutdown, so
// that their retry policy may start them elsewhere. Drain returns nil when nothing of this
// instance is left in the inbox, and an error if the executor stops first or the attempts do
// not end after the kill. The executor keeps draining after Drain has returned, until Resume.
func (e *Executor) Drain(ctx context.Context) error {
	empty := make(chan struct{})
	yes := true
	e.postMail(func(m *mail) { m.drain = &yes; m.waiting = append(m.waiting, empty) })

	select {
	case <-empty:
		return nil
	case <-e.left:
		return errors.New("drain: the executor has stopped")
	case <-ctx.Done():
	}

	e.postMail(func(m *mail) { m.stop = true })
	limit := time.NewTimer(mostGrace + stopLimit)
	defer limit.Stop()

	select {
	case <-empty:
		return nil
	case <-e.left:
		return errors.New("drain: the executor has stopped")
	case <-limit.C:
		return fmt.Errorf("drain: %d attempts still run, or their ends are not recorded", e.Running())
	}
}

// HandBack starts nothing new and hands back attempts that have not started, like Drain, but
// does not wait and does not kill running attempts. It lasts until Resume.
func (e *Executor) HandBack() {
	yes := true
	e.postMail(func(m *mail) { m.drain = &yes })
}

// Beats returns a counter that grows at least twice a second while the loop makes progress.
func (e *Executor) Beats() int64 { return e.beats.Load() }

// Resume ends a drain.
func (e *Executor) Resume() {
	no := false
	e.postMail(func(m *mail) { m.drain, m.stop = &no, false })
}

func (e *Executor) postMail(f func(*mail)) {
	e.mu.Lock()
	f(&e.mail)
	e.mu.Unlock()

	e.pokes.Send()
}

// callInLoop makes the loop call f. It may be called from any goroutine.
func (e *Executor) callInLoop(f func()) { e.postMail(func(m *mail) { m.news = append(m.news, f) }) }

// Run runs attempts until ctx ends. Then it kills those that are still running, tries for
// stopLimit to record their ends, and returns when everything that it started has ended. For a
// graceful stop, call Drain first. Run is called once.
func (e *Executor) Run(ctx context.Context) error {
	defer close(e.left)

	// The writers and the runner outlive the loop: the processes have to end first, then
	// their ends are recorded.
	life, stopWriters := context.WithCancel(context.WithoutCancel(ctx))
	var others, attempts sync.WaitGroup

	e.attempts = &attempts
	for range e.cfg.Finishers {
		others.Go(func() { e.runFinisher(life) })
	}

	for range writers {
		others.Go(func() { e.runWriter(life) })
	}

	others.Go(func() { _ = e.spool.Run(life) })

	ready := make(chan struct{})
	others.Go(func() { e.runner.Run(life, func() { close(ready) }) })

	select {
	case <-ready:
	case <-ctx.Done():
	}

	follow := newFollowing(e)
	e.runLoop(ctx, follow)
	follow.stop()
	e.windDown(ctx)
	stopWriters()
	close(e.toRecord.jobs)
	close(e.toWrite.jobs)
	others.Wait()
	attempts.Wait()

	return nil
}

// job is a write to etcd that runs outside the loop. It returns at once when ctx ends.
type job func(ctx context.Context)

func (e *Executor) runWriter(ctx context.Context) {
	for j := range e.toWrite.jobs {
		j(ctx)
	}
}

// runFinisher records the ends of attempts, which are by far the most frequent writes.
func (e *Executor) runFinisher(ctx context.Context) {
	for x := range e.toRecord.jobs {
		x.err = e.cfg.Inbox.Finish(ctx, *x.held, x.run, x.next)
		e.postMail(func(m *mail) { m.recorded = append(m.recorded, x) })
	}
}
