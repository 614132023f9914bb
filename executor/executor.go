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
	"github.com/carillonhq/carillon/executor/outputmail"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// Defaults of Config. A finisher waits for etcd with one end at a time, and ends that are written at the same time
// share requests, so the number of finishers limits how many ends can share one. An unrecorded result holds up to
// 2 KiB of output, so the second limit bounds the memory that results take during an outage of etcd.
const (
	DefaultFinishers     = 512
	DefaultMaxUnfinished = 10_000
)

const (
	// checkInterval is the interval at which all attempts are checked. It limits how late the executor notices what no
	// event announces: a silent node, a start deadline, the end of a backoff. It has to be small against the
	// margin of mostSilence, which is 3 s for the shortest lost_after that is allowed (12 s).
	checkInterval = 500 * time.Millisecond
	// markAfter is the age at which an attempt is recorded as running. Most attempts are shorter and need no
	// write between their dispatch and their end.
	markAfter = time.Second
	// maxWriters is the maximum number of adoptions, marks, hand-backs and reads of cleared/ in flight.
	maxWriters = 64
	// writeLimit is the time limit of one of these requests. A write that exceeds it has an unknown outcome.
	writeLimit = 5 * time.Second
	// retryWrite and retryFinish are the backoffs after a failed write. A newer revision of the record ends
	// them early. The end of an attempt is retried sooner, because its successor may wait for it.
	retryWrite  = 500 * time.Millisecond
	retryFinish = 200 * time.Millisecond
	// maxEventDelay is how long an event of the watch may be in flight after a list has shown its effect. After
	// that, the watch counts as having lost it; see compareList.
	maxEventDelay = 10 * time.Second
	// listInterval is the interval between lists of the inbox. A list repairs what the watch may have lost.
	listInterval = time.Minute
	// maxGrace is the maximum grace period when the node is silent or stopping. The task's own kill_grace may
	// be longer than the margin of mostSilence (G17), or than the time that a drain allows.
	maxGrace = 5 * time.Second
	// stopLimit is how long the executor waits, once all processes have been killed, until their ends are recorded.
	stopLimit = 10 * time.Second
)

// Config configures an Executor. New copies it; later changes have no effect.
type Config struct {
	Node     string // the node's name; its inbox is runs/<Node>/
	Instance string // the executor starts and adopts only attempts of this instance
	Slots    int    // maximum number of processes at the same time; at least 1. HTTP attempts have slots of their own
	Dir      string // the data directory: the spool is in it
	Workdirs string // where the working directories of attempts are; "" is below Dir. See workdir.Root
	Inbox    Inbox
	Guardian *guardian.Client // nil: no guardian, for tests
	// Spool configures where and how output is kept. New sets its Dir, Logger and Registerer.
	Spool spool.Config
	// Groups provides a control group for each attempt. If it is nil or has none, processes
	// are found in other ways; see package proctree.
	Groups *cgroup.Groups
	// Orphans, if set, are adopted and reaped: without groups, and by the first
	// process of a container.
	Orphans *proctree.Orphans

	// Secrets reads the secrets that env_from names; nil if the node has no key.
	Secrets process.Secrets
	// DefaultUser is the OS user of attempts whose tasks name none; "" is the daemon's own.
	DefaultUser string
	// Policy is what the node's administrator allows; nil allows everything.
	Policy process.Policy

	// Mail is how, and to whom, this node may send the output of runs by mail. The zero value sends none.
	Mail outputmail.Policy

	// HTTP creates what runs the attempts of HTTP actions and stores their output in the spool. New calls it. If it is nil,
	// this node does not support them.
	HTTP func(*spool.Spool) (AttemptRunner, error)

	// Dead reports whether an instance is known to be dead with all its processes,
	// in addition to Inbox.Cleared; nil means that none is.
	Dead func(instance string) bool

	Finishers     int // maximum number of results being written at the same time; 0 is DefaultFinishers
	MaxUnfinished int // number of unrecorded results at which starts pause; 0 is DefaultMaxUnfinished

	// Fake, if set, replaces processes, in tests.
	Fake process.Fake
	// Obeyed, if set, is called when Froze has changed. It does not block.
	Obeyed func()
	// StuckChanged, if set, is called when StuckStarts has changed. It does not block.
	StuckChanged func()
	// Boot is a clock that counts suspend; nil is the host's CLOCK_BOOTTIME. If it is set, the host counts as one
	// that never suspends, and Boot serves as the monotonic clock as well.
	Boot func() time.Duration

	Logger     *zap.Logger           // nil: none
	Registerer prometheus.Registerer // nil: none

	freeze     func(*proctree.Tree) error // see process.Config; for tests
	emptyLimit time.Duration              // the same
}

// AttemptRunner runs attempts of one kind of action, each from its preparation to its end. *process.Runner runs those of
// processes.
//
// RunAttempt calls MayStart directly before the attempt has its first effect, and OnStarted if it is allowed. It returns
// soon after a kill. Result.NotStarted means that the attempt had no effect, so its token may be used.
type AttemptRunner interface {
	RunAttempt(a process.Attempt, o *process.Orders) process.Result
}

// Session is one presence of the node in the cluster: the create revision of its key, and when
// the lease of that key was last renewed.
type Session struct {
	// Fence is the node's key with its create revision. Every adoption compares it, so no attempt is adopted
	// under a session that has ended.
	Fence kv.Fence
	// Gap is what lost histories of the cluster may have decided; nil: there were none. See store.Session.
	Gap *task.Gap
	// LastRenewal is when the last acknowledged renewal was sent, with a
	// monotonic reading. It is called after the session's end, too.
	LastRenewal func() time.Time
	// TTL is how long the session is certain to last after a renewal; 0 disables the check.
	// After that it may have expired, and others may consider the node gone, so the node
	// starts nothing until a renewal succeeds.
	TTL time.Duration
}

// Executor runs the attempts in one node's inbox. Its exported methods may be called from any goroutine. They post
// messages for the loop or read atomic values; none of them touches the loop's state.
type Executor struct {
	cfg      Config
	log      *zap.Logger
	metrics  metrics
	spool    *spool.Spool
	runner   *process.Runner
	mailer   *outputmail.Mailer
	reread   time.Duration // between lists of the inbox
	patience time.Duration // how long an event of the watch may be in flight
	clocks   clocks

	lateFile *lateCancels

	runners map[string]AttemptRunner // by the kind of action; of those that the node supports

	// batches is unbuffered, and the sender waits until its batch is applied. So the loop decides by a state
	// that is at most one batch behind what the watch has delivered.
	batches    chan inboxBatch
	wakeSignal wake.Signal   // set when the mailbox has new messages
	left       chan struct{} // closed when Run returns

	mu      sync.Mutex // guards mailbox
	mailbox mailbox

	// What the loop publishes for Free, Running, Beats and Froze, and for the metrics.
	free, running, runningHTTP, beats, froze atomic.Int64

	state // owned by the goroutine of Run

	// Ends have their own queue. They are far more frequent than other writes, and must not wait behind
	// adoptions that time out while etcd is unavailable.
	toRecord writerQueue[*ending]
	toWrite  writerQueue[job]
}

// inboxBatch is a list or some events of the inbox, and a channel for the result of applying it.
type inboxBatch struct {
	store.InboxBatch
	session int        // the session whose follower read it
	taken   chan error // buffered, so that the loop never waits for the follower
}

// mailbox holds the messages of other goroutines since the loop last read it. Its size
// is bounded by the number of attempts in the inbox.
type mailbox struct {
	session      *Session        // the latest join; it replaces one that the loop has not processed yet
	recorded     []*ending       // ends that finishers tried to record, successfully or not
	callbacks    []func()        // reports of attempts and writers, as functions that the loop calls
	drain        *bool           // begin or end a drain; nil: no change
	stop         bool            // kill what still runs; stays set until Resume
	drainWaiters []chan struct{} // calls of Drain, closed when nothing of this instance is left
}

// New returns an executor that does nothing until Run is called. It opens /dev/null and marks the
// descriptors of this program as close-on-exec, reads the late cancels of former processes, and does no other I/O. It
// fails if they cannot be read, if a required setting is missing, or if Slots is less than 1.
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

	// The fields that New sets override what the caller has put into Config.Spool.
	log := cmp.Or(cfg.Logger, zap.NewNop()).Named("executor")
	cfg.Spool.Dir, cfg.Spool.Logger, cfg.Spool.Registerer = cfg.Dir, log, cfg.Registerer
	output := spool.New(cfg.Spool)
	runner, err := process.New(process.Config{
		Node: cfg.Node, Instance: cfg.Instance, Dir: cfg.Dir, Workdirs: cfg.Workdirs, Spool: output,
		Guardian: cfg.Guardian, Groups: cfg.Groups, Orphans: cfg.Orphans, Secrets: cfg.Secrets, Policy: cfg.Policy, DefaultUser: cfg.DefaultUser,
		StuckChanged: cfg.StuckChanged, Fake: cfg.Fake, Freeze: cfg.freeze, EmptyLimit: cfg.emptyLimit,
		Logger: log, Registerer: cfg.Registerer,
	})
	if err != nil {
		return nil, fmt.Errorf("executor: %w", err)
	}

	late, err := openLateCancels(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("executor: %w", err)
	}

	e := &Executor{
		cfg: cfg, log: log, spool: output, runner: runner, lateFile: late,
		runners: map[string]AttemptRunner{task.KindProcess: runner},
		reread:  listInterval, patience: maxEventDelay,
		clocks:  clocksOf(cfg.Boot),
		batches: make(chan inboxBatch), wakeSignal: wake.NewSignal(),
		left: make(chan struct{}), state: newState(),
	}
	if cfg.HTTP != nil {
		if e.runners[task.KindHTTP], err = cfg.HTTP(output); err != nil {
			return nil, fmt.Errorf("executor: %w", err)
		}
	}

	for _, c := range late.list() {
		e.cancelsLate[lateIDOf(&c)] = &lateCancel{LateCancel: c}
	}

	e.mailer = outputmail.New(outputmail.Config{
		Policy: cfg.Mail, Node: cfg.Node, Spool: output, Programs: runner, Logger: log, Registerer: cfg.Registerer,
	})
	e.toRecord.jobs, e.toWrite.jobs = make(chan *ending, cfg.Finishers), make(chan job, maxWriters)
	e.metrics = newMetrics(e, cfg.Registerer)
	e.free.Store(int64(cfg.Slots))

	return e, nil
}

// Spool returns the spool that holds the output of this node's attempts.
func (e *Executor) Spool() *spool.Spool { return e.spool }

// Free returns the number of Config.Slots that are neither in use nor claimed by attempts that wait
// in the inbox.
func (e *Executor) Free() int { return int(e.free.Load()) }

// Running returns the number of attempts that run or are being started, of all kinds.
func (e *Executor) Running() int { return int(e.running.Load()) }

// StuckStarts returns the number of starts that hang: those that have taken more than a few
// seconds, and those that were given up and have not ended.
func (e *Executor) StuckStarts() int { return e.runner.StuckStarts() }

// Joined passes a new session to the executor. The daemon calls it after every join. The inbox
// is listed again, and attempts from before the join are adopted. Nothing starts before the
// first call.
func (e *Executor) Joined(s Session) { e.postMail(func(m *mailbox) { m.session = &s }) }

// Drain starts nothing new, hands back attempts that have not started, and waits for the
// others until ctx ends. Then it kills them: they end as failed with task.ReasonShutdown, so
// that their retry policy may start them elsewhere. Drain returns nil when nothing of this
// instance is left in the inbox, and an error if the executor stops first or the attempts do
// not end after the kill. The executor keeps draining after Drain has returned, until Resume.
func (e *Executor) Drain(ctx context.Context) error {
	empty := make(chan struct{})
	yes := true
	e.postMail(func(m *mailbox) { m.drain = &yes; m.drainWaiters = append(m.drainWaiters, empty) })

	select {
	case <-empty:
		return nil
	case <-e.left:
		return errors.New("drain: the executor has stopped")
	case <-ctx.Done():
	}

	// The time is up. Kill what still runs. The grace period of these kills is at most maxGrace, and stopLimit
	// remains for recording the ends.
	e.postMail(func(m *mailbox) { m.stop = true })
	limit := time.NewTimer(maxGrace + stopLimit)
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
	e.postMail(func(m *mailbox) { m.drain = &yes })
}

// Beats returns a counter that grows at least twice a second while the loop makes progress. The daemon's watchdog
// compares successive values to find out whether the loop is stuck.
func (e *Executor) Beats() int64 { return e.beats.Load() }

// Resume ends a drain. Attempts whose hand-back has an unknown outcome are adopted before they start; see
// decideHandedBack. Kills that a drain has already sent are not undone.
func (e *Executor) Resume() {
	no := false
	e.postMail(func(m *mailbox) { m.drain, m.stop = &no, false })
}

// postMail changes the mailbox under its lock and wakes the loop. It never waits for the loop.
func (e *Executor) postMail(f func(*mailbox)) {
	e.mu.Lock()
	f(&e.mailbox)
	e.mu.Unlock()

	e.wakeSignal.Send()
}

// callInLoop makes the loop call f. It may be called from any goroutine and does not wait for the call. Calls from
// one goroutine keep their order. After Run has returned, f is never called.
func (e *Executor) callInLoop(f func()) {
	e.postMail(func(m *mailbox) { m.callbacks = append(m.callbacks, f) })
}

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

	for range maxWriters {
		others.Go(func() { e.runWriter(life) })
	}

	others.Go(func() { _ = e.spool.Run(life) })
	others.Go(func() { _ = e.mailer.Run(life) })

	// Wait until the runner can start processes. Until then no inbox is followed, so nothing starts.
	ready := make(chan struct{})
	others.Go(func() { e.runner.Run(life, func() { close(ready) }) })

	select {
	case <-ready:
	case <-ctx.Done():
	}

	// The follower has to stop before windDown: nobody receives batches after the loop has ended.
	follow := newInboxFollower(e)
	e.runLoop(ctx, follow)
	follow.stop()
	// The order matters. windDown needs the writers and the finishers. The loop was the only sender to the queues,
	// so they can be closed now. Writes in flight end because their context has ended.
	e.windDown(ctx)
	stopWriters()
	close(e.toRecord.jobs)
	close(e.toWrite.jobs)
	others.Wait()
	attempts.Wait()

	return nil
}

// job is a request to etcd that runs outside the loop. It returns at once when ctx ends, and reports its result to
// the loop by callInLoop.
type job func(ctx context.Context)

// runWriter runs jobs until the queue is closed. Jobs that are still queued then fail at once, because ctx has ended.
func (e *Executor) runWriter(ctx context.Context) {
	for j := range e.toWrite.jobs {
		j(ctx)
	}
}

// runFinisher records the ends of attempts until the queue is closed. Ends are by far the most frequent writes. Their
// results are posted as values and not as functions, which saves an allocation for each.
func (e *Executor) runFinisher(ctx context.Context) {
	for x := range e.toRecord.jobs {
		e.keepEnd(x)
		x.err = e.cfg.Inbox.Finish(ctx, *x.held, x.run, x.next)
		e.postMail(func(m *mailbox) { m.recorded = append(m.recorded, x) })
	}
}

// Inbox is the part of the store that the executor uses. *store.Store implements it. The executor calls all methods
// outside its loop, with a deadline or with a context that ends. The store documents each method and its errors.
type Inbox interface {
	// FollowInbox and FollowFreezes list, then watch. They return only with an error.
	FollowInbox(ctx context.Context, node string, relist time.Duration, apply func(store.InboxBatch) error) error
	FollowFreezes(ctx context.Context, relist time.Duration, apply func(store.FreezeRecord) error) error
	// Rewrite compares the record's mod revision and the session. Its errors include task.ErrConflict and
	// task.ErrFenced, after which nothing was written. After any other error the outcome is unknown.
	Rewrite(ctx context.Context, session kv.Fence, h record.Held) (mod int64, err error)
	// Finish retries until the outcome is known or ctx ends. store.ErrLate and task.ErrConflict are final answers.
	Finish(ctx context.Context, h record.Held, end task.Run, next *task.Waiting) error
	// HandBack compares the record's mod revision only, so it also works after the session has ended.
	HandBack(ctx context.Context, h record.Held) error
	// Cleared is true only if no process of the instance is left.
	Cleared(ctx context.Context, instance string) (bool, error)
}

var _ Inbox = (*store.Store)(nil)
