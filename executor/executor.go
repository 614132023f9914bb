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
	look        = 500 * time.Millisecond // between looks at clocks
	markAfter   = time.Second            // "running" is written for what lasts longer
	writers     = 64                     // adoptions, marks and hand-backs in flight
	writeLimit  = 5 * time.Second        // for one of these
	retryWrite  = 500 * time.Millisecond
	retryFinish = 200 * time.Millisecond
	patience    = 10 * time.Second // for an event to be on its way
	reread      = time.Minute      // between lists of the inbox: a watch is a hint
	mostGrace   = 5 * time.Second  // of a node that must be quick: silent, or stopping
	stopLimit   = 10 * time.Second
)

// Config says what an executor is for.
type Config struct {
	Node     string
	Instance string // only its attempts are started and adopted
	Slots    int    // processes at once; at least 1
	Dir      string // the data directory: the spool is in it
	Workdirs string // where the working directories of attempts are; "" is below Dir. See workdir.Root
	Inbox    Inbox
	Guardian *guardian.Client // nil: none, for tests
	Spool    spool.Config
	// Groups are the control groups of attempts, one each; nil, or of which there are
	// none: their processes are found in other ways.
	Groups *cgroup.Groups
	// Orphans, if set, are adopted and reaped: without groups, and by the first
	// process of a container.
	Orphans *proctree.Orphans

	// Secrets reads those that env_from names; nil: the node has no key.
	Secrets process.Secrets
	// Policy is what the node's administrator allows; nil: all.
	Policy process.Policy

	// Dead reports whether an instance is known to be dead with all its processes,
	// beyond what Inbox.Cleared says; nil: none is.
	Dead func(instance string) bool

	Finishers     int // results recorded at once; 0 is DefaultFinishers
	MaxUnfinished int // results that wait, at most, before starts pause; 0 is DefaultMaxUnfinished

	// Fake, if set, takes the place of processes.
	Fake process.Fake
	// Obeyed, if set, is called when Froze has changed. It does not block.
	Obeyed func()
	// StuckChanged, if set, is called when StuckStarts has changed. It does not block.
	StuckChanged func()
	// Boot is a clock that counts suspend; nil: the host's.
	Boot func() time.Duration

	Logger     *zap.Logger           // nil: none
	Registerer prometheus.Registerer // nil: none

	freeze     func(*proctree.Tree) error // see process.Config; for tests
	emptyLimit time.Duration              // the same
}

// Session is the node's presence: its key's create revision, and when the lease
// under it was last renewed.
type Session struct {
	Fence kv.Fence
	// LastRenewal is when the last acknowledged renewal was sent, with a
	// monotonic reading. It is called after the session's end, too.
	LastRenewal func() time.Time
	// TTL is how long the session outlives its last renewal, at least; 0: nobody
	// asks. After that it may be over, and others may take the node for gone: it
	// starts nothing until it hears of etcd again.
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

	runAttempt func(process.Attempt, *process.Orders) process.Result // the runner's, but for tests

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

// batch is a step of the inbox, and whether it was taken.
type batch struct {
	store.InboxBatch
	session int
	taken   chan error
}

// mail is what others have for the loop, until it looks. Each attempt adds at
// most one line at a time, so it is bounded by what the inbox holds.
type mail struct {
	session  *Session
	recorded []*ending // tried, with or without success
	news     []func()  // what attempts and other writers found; called by the loop
	drain    *bool
	stop     bool // kill what still runs
	waiting  []chan struct{}
}

// New makes an executor, without any I/O but opening /dev/null. Run runs it.
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

// Spool is where the output of this node's attempts is.
func (e *Executor) Spool() *spool.Spool { return e.spool }

// Free is how many slots are neither in use nor claimed by attempts that wait in
// the inbox.
func (e *Executor) Free() int { return int(e.free.Load()) }

// Running is how many attempts have a process, or are about to.
func (e *Executor) Running() int { return int(e.running.Load()) }

// StuckStarts is how many starts have taken more than some seconds, or could not be ended
// after they were given up.
func (e *Executor) StuckStarts() int { return e.runner.StuckStarts() }

// Joined tells of a new session, at every join. The inbox is listed anew; what
// was held before is adopted. Before the first nothing starts.
func (e *Executor) Joined(s Session) { e.post(func(m *mail) { m.session = &s }) }

// Drain starts nothing new, hands attempts back that have not started, and waits
// for the others until ctx ends. Then they are killed, and end as failed with
// task.ReasonShutdown, so that the retry policy may have them run elsewhere. nil
// means that nothing of this instance is left in the inbox. Draining goes on
// after it returns, until Resume.
func (e *Executor) Drain(ctx context.Context) error {
	empty := make(chan struct{})
	yes := true
	e.post(func(m *mail) { m.drain = &yes; m.waiting = append(m.waiting, empty) })

	select {
	case <-empty:
		return nil
	case <-e.left:
		return errors.New("drain: the executor has stopped")
	case <-ctx.Done():
	}

	e.post(func(m *mail) { m.stop = true })
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

// HandBack starts nothing new and hands back what has not started, like Drain,
// without waiting and without an end for what runs. It goes on until Resume.
func (e *Executor) HandBack() {
	yes := true
	e.post(func(m *mail) { m.drain = &yes })
}

// Beats grows twice a second, at least, while the executor lives.
func (e *Executor) Beats() int64 { return e.beats.Load() }

// Resume ends a drain.
func (e *Executor) Resume() {
	no := false
	e.post(func(m *mail) { m.drain, m.stop = &no, false })
}

func (e *Executor) post(f func(*mail)) {
	e.mu.Lock()
	f(&e.mail)
	e.mu.Unlock()

	e.pokes.Send()
}

// tell has the loop do something; it may be called from anywhere.
func (e *Executor) tell(f func()) { e.post(func(m *mail) { m.news = append(m.news, f) }) }

// Run runs attempts until ctx ends; then it kills those that still run, tries
// for some seconds to record their ends, and returns when all that it started
// has ended. For a gentle end, Drain first. It is called once.
func (e *Executor) Run(ctx context.Context) error {
	defer close(e.left)

	// What Run started ends with these, after the loop: processes first, then
	// the writers of their ends and the runner.
	life, stopWriters := context.WithCancel(context.WithoutCancel(ctx))
	var others, attempts sync.WaitGroup

	e.attempts = &attempts
	for range e.cfg.Finishers {
		others.Go(func() { e.finish(life) })
	}

	for range writers {
		others.Go(func() { e.write(life) })
	}

	others.Go(func() { _ = e.spool.Run(life) })

	ready := make(chan struct{})
	others.Go(func() { e.runner.Run(life, func() { close(ready) }) })

	select {
	case <-ready:
	case <-ctx.Done():
	}

	follow := newFollowing(e)
	e.loop(ctx, follow)
	follow.stop()
	e.wind(ctx)
	stopWriters()
	close(e.toRecord.jobs)
	close(e.toWrite.jobs)
	others.Wait()
	attempts.Wait()

	return nil
}

// job is a write to etcd, off the loop. With ctx it is over at once.
type job func(ctx context.Context)

func (e *Executor) write(ctx context.Context) {
	for j := range e.toWrite.jobs {
		j(ctx)
	}
}

// finish records ends. Those are the most frequent writes by far.
func (e *Executor) finish(ctx context.Context) {
	for x := range e.toRecord.jobs {
		x.err = e.cfg.Inbox.Finish(ctx, *x.held, x.run, x.next)
		e.post(func(m *mail) { m.recorded = append(m.recorded, x) })
	}
}
