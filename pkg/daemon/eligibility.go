package daemon

import (
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

// eligibility says whether the node may own shards at present, and why not. There may
// be several reasons at once: each is raised and withdrawn by the part that found it,
// and the gravest is announced.
type eligibility struct {
	log     *zap.Logger
	changed func() // what is announced has changed; called without any lock held
	total   *prometheus.CounterVec

	mu      sync.Mutex
	reasons map[string]error
}

// errIneligible is part of the error that says why the node may decide nothing.
var errIneligible = errors.New("the node owns no shards at present")

// reasonsByGravity are the reasons in the order in which they are told.
var reasonsByGravity = []string{task.UnfitRestored, task.UnfitClock, task.UnfitStalled}

func newEligibility(r prometheus.Registerer, log *zap.Logger, changed func()) *eligibility {
	e := &eligibility{log: log.Named("fitness"), changed: changed, reasons: map[string]error{}}
	e.total = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_unfit_total",
		Help: "Times that the node gave up its shards, by reason: clock, stalled, restored."}, []string{"reason"})
	r.MustRegister(e.total)

	for _, reason := range reasonsByGravity {
		e.total.WithLabelValues(reason)
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "carillon_unfit",
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

// setReason raises a reason, or withdraws it if err is nil.
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

// errorFor is what there is to say of a reason; nil if it does not hold.
func (e *eligibility) errorFor(reason string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reasons[reason]
}

// gravestReason is the gravest reason that holds; "" if none does.
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

// firstError says why the node should own no shards; nil if it may.
func (e *eligibility) firstError() error {
	if reason := e.gravestReason(); reason != "" {
		return fmt.Errorf("%w (%s): %w", errIneligible, reason, e.errorFor(reason))
	}
	return nil
}

// ineligibleErr says why the node must decide nothing from now on; nil if it may. A
// node that stalls is not forbidden to try: perhaps there is no other.
func (e *eligibility) ineligibleErr() error {
	for _, reason := range []string{task.UnfitRestored, task.UnfitClock} {
		if err := e.errorFor(reason); err != nil {
			return fmt.Errorf("%w (%s): %w", errIneligible, reason, err)
		}
	}

	return nil
}
