package daemon

import (
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

// fitness is whether the node may own shards at present, and why not. There may
// be several reasons at once: each is raised and withdrawn by whoever found it,
// and the gravest is announced.
type fitness struct {
	log     *zap.Logger
	changed func() // what is announced has changed; called without any lock held
	total   *prometheus.CounterVec

	mu      sync.Mutex
	reasons map[string]error
}

// errUnfit is part of the error that says why the node may decide nothing.
var errUnfit = errors.New("the node owns no shards at present")

// gravest are the reasons in the order in which they are told.
var gravest = []string{task.UnfitRestored, task.UnfitClock, task.UnfitStalled}

func newFitness(r prometheus.Registerer, log *zap.Logger, changed func()) *fitness {
	f := &fitness{log: log.Named("fitness"), changed: changed, reasons: map[string]error{}}
	f.total = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_unfit_total",
		Help: "Times that the node gave its shards up by itself, by reason: clock, stalled, restored."}, []string{"reason"})
	r.MustRegister(f.total)
	for _, reason := range gravest {
		f.total.WithLabelValues(reason)
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "carillon_unfit",
			Help: "1 while the node owns no shards for this reason.", ConstLabels: prometheus.Labels{"reason": reason}},
			func() float64 {
				if f.why(reason) != nil {
					return 1
				}
				return 0
			}))
	}
	return f
}

// set raises a reason, or withdraws it if err is nil.
func (f *fitness) set(reason string, err error) {
	f.mu.Lock()
	was := f.reasons[reason]
	if err == nil {
		delete(f.reasons, reason)
	} else {
		f.reasons[reason] = err
	}
	f.mu.Unlock()
	switch {
	case was == nil && err != nil:
		f.total.WithLabelValues(reason).Inc()
		f.log.Error("this node gives its shards up", zap.String("reason", reason), zap.Error(err))
	case was != nil && err == nil:
		f.log.Info("this node may own shards again", zap.String("reason", reason))
	default:
		return
	}
	f.changed()
}

// why is what there is to say of a reason; nil if it does not hold.
func (f *fitness) why(reason string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reasons[reason]
}

// unfit is the gravest reason that holds; "" if none does.
func (f *fitness) unfit() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, reason := range gravest {
		if f.reasons[reason] != nil {
			return reason
		}
	}
	return ""
}

// err says why the node should own no shards; nil if it may.
func (f *fitness) err() error {
	if reason := f.unfit(); reason != "" {
		return fmt.Errorf("%w (%s): %w", errUnfit, reason, f.why(reason))
	}
	return nil
}

// forbids says why the node must decide nothing from now on; nil if it may. A
// node that stalls is not forbidden to try: perhaps there is no other.
func (f *fitness) forbids() error {
	for _, reason := range []string{task.UnfitRestored, task.UnfitClock} {
		if err := f.why(reason); err != nil {
			return fmt.Errorf("%w (%s): %w", errUnfit, reason, err)
		}
	}
	return nil
}
