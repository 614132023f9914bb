package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon/clockguard"
	"github.com/carillonhq/carillon/pkg/task"
)

// eligibility records whether the node may own shards, and the reasons if not. Several reasons may
// hold at once. Each is set and withdrawn by the component that detects it;
// the gravest one is announced. The methods may be called from any goroutine.
type eligibility struct {
	log     *zap.Logger
	changed func() // called without locks when a reason was set or withdrawn
	total   *prometheus.CounterVec

	mu      sync.Mutex
	reasons map[string]error // the reasons that hold
}

// errIneligible is wrapped by errors of commits that the node may not send.
var errIneligible = errors.New("the node owns no shards at present")

// reasonsByGravity lists all reasons, the gravest first.
var reasonsByGravity = []string{task.IneligibleRestored, task.IneligibleClock, task.IneligibleStalled}

// newEligibility returns an eligibility without reasons, and registers its metrics.
func newEligibility(r prometheus.Registerer, log *zap.Logger, changed func()) *eligibility {
	e := &eligibility{log: log.Named("fitness"), changed: changed, reasons: map[string]error{}}
	e.total = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_ineligible_total",
		Help: "Times that the node gave up its shards, by reason: clock, stalled, restored."}, []string{"reason"})
	r.MustRegister(e.total)

	for _, reason := range reasonsByGravity {
		e.total.WithLabelValues(reason)
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "carillon_ineligible",
			Help: "Whether the node has given up its shards for this reason: 1 if so, else 0.", ConstLabels: prometheus.Labels{"reason": reason}},
			func() float64 {
				if e.errorFor(reason) != nil {
					return 1
				}
				return 0
			}))
	}

	return e
}

// setReason sets a reason with its error, or withdraws it if err is nil. The error of a reason that holds is updated
// without a call of changed.
func (e *eligibility) setReason(reason string, err error) {
	e.mu.Lock()
	was := e.reasons[reason]

	if err == nil {
		delete(e.reasons, reason)
	} else {
		e.reasons[reason] = err
	}
	e.mu.Unlock()

	switch {
	case was == nil && err != nil:
		e.total.WithLabelValues(reason).Inc()
		e.log.Error("this node releases its shards", zap.String("reason", reason), zap.Error(err))
	case was != nil && err == nil:
		e.log.Info("this node may own shards again", zap.String("reason", reason))
	default:
		return
	}

	e.changed()
}

// errorFor returns the error of a reason, or nil if the reason does not hold.
func (e *eligibility) errorFor(reason string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reasons[reason]
}

// gravestReason returns the gravest reason that holds, or "" if none does.
func (e *eligibility) gravestReason() string {
	e.mu.Lock()
	defer e.mu.Unlock()

	for _, reason := range reasonsByGravity {
		if e.reasons[reason] != nil {
			return reason
		}
	}

	return ""
}

// firstError returns why the node should own no shards, or nil if it may own some.
func (e *eligibility) firstError() error {
	if reason := e.gravestReason(); reason != "" {
		return fmt.Errorf("%w (%s): %w", errIneligible, reason, e.errorFor(reason))
	}
	return nil
}

// ineligibleErr returns why the node must not decide anything, or nil if it may. A
// stalled node may try, because there may be no other node.
func (e *eligibility) ineligibleErr() error {
	for _, reason := range []string{task.IneligibleRestored, task.IneligibleClock} {
		if err := e.errorFor(reason); err != nil {
			return fmt.Errorf("%w (%s): %w", errIneligible, reason, err)
		}
	}

	return nil
}

// clockLook is the interval at which the clock is compared with those of other nodes.
const clockLook = 500 * time.Millisecond

// clockMonitor judges the node's clock: when another node announces its clock,
// every clockLook, and before each commit. It sets the eligibility accordingly. The methods may be called from any
// goroutine.
type clockMonitor struct {
	node        string
	env         Environment
	eligibility *eligibility
	looked      chan struct{} // closed when the clock has been compared once

	mu    sync.Mutex
	guard *clockguard.Guard
}

// newClockMonitor returns a monitor that has not compared the clock yet. An announcement that was in etcd before the
// node started may be as old as a lease and an announcement interval.
func newClockMonitor(cfg Config, env Environment, f *eligibility) *clockMonitor {
	return &clockMonitor{
		node: cfg.Name, env: env, eligibility: f, looked: make(chan struct{}),
		guard: clockguard.New(cfg.LeaseTTL.Std() + announceEvery),
	}
}

// run judges the clock every clockLook until ctx ends.
func (c *clockMonitor) run(ctx context.Context) error {
	tick := time.NewTicker(clockLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.looked:
			_ = c.judgeClock((*clockguard.Guard).Look) // judgeClock sets the eligibility
		default: // the other nodes are not known yet
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// observeNodes passes the records of all present nodes to the guard. Only followFleet calls it, so looked is closed
// once.
func (c *clockMonitor) observeNodes(all []task.Node) {
	others := slices.DeleteFunc(slices.Clone(all), func(n task.Node) bool { return n.Name == c.node })
	_ = c.judgeClock(func(g *clockguard.Guard, r clockguard.Reading) error {
		g.Hear(r, others)
		return g.Look(r)
	})

	select {
	case <-c.looked:
	default:
		close(c.looked)
	}
}

// judgeClock reads both clocks, lets the guard judge them, and sets the eligibility if the verdict has changed.
func (c *clockMonitor) judgeClock(ask func(*clockguard.Guard, clockguard.Reading) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	was := c.guard.Err()
	err := ask(c.guard, clockguard.Reading{Wall: c.env.Now(), Boot: c.env.bootTime()})
	if (was == nil) != (err == nil) {
		c.eligibility.setReason(task.IneligibleClock, err)
	}

	return err
}

// checkClock returns why the clock cannot be trusted now, or nil. It is called before
// each commit, and before the API writes a time to an entry. It is cheap.
func (c *clockMonitor) checkClock() error { return c.judgeClock((*clockguard.Guard).Step) }

// checkTrusted is checkClock for the API. It also returns an error if the clock has not been compared
// yet.
func (c *clockMonitor) checkTrusted() error {
	select {
	case <-c.looked:
		return c.checkClock()
	default:
		return errors.New("it has not been compared with those of the other nodes yet")
	}
}
