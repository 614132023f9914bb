package httpaction

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
)

// Config configures a Runner.
type Config struct {
	Node    string          // the node's name, for templates
	Dir     string          // where temporary files are; "": the system's directory for them
	Spool   *spool.Spool    // stores responses; nil: none, for tests
	Secrets process.Secrets // reads secrets; nil: the node has no key
	Rules   func() (Rules, error)
	// Own returns the addresses on which this node listens or which it advertises. No attempt may connect to them. An
	// unspecified address, such as 0.0.0.0, stands for all addresses of this host. nil: there are none.
	Own func() []netip.AddrPort
	// Etcd contains the endpoints of etcd, as URLs or as host:port. No attempt may connect to them.
	Etcd []string
	Boot func() time.Duration // CLOCK_BOOTTIME; nil: the host's

	resolver *net.Resolver // replaces the host's, in tests

	Logger     *zap.Logger           // nil: none
	Registerer prometheus.Registerer // nil: none
}

// Rules is what the node's administrator allows. Rules that are not set allow what is allowed without a policy.
type Rules struct {
	HTTP      *policy.HTTP  // the targets; it must not be changed after it was returned
	NoSecrets bool          // requests may not use secrets
	Timeout   time.Duration // the maximum timeout; 0: none
}

// Runner runs attempts of HTTP actions. Any number of them may run at the same time.
type Runner struct {
	cfg         Config
	base        context.Context // the parent of the requests' contexts; it does not end
	log         *zap.Logger
	transports  *transports
	secretSlots chan struct{}       // limits the reads of secrets
	judging     chan struct{}       // limits the large responses that are judged at the same time, because of their memory
	disk        *semaphore.Weighted // limits the bytes in their temporary files
	refused     *prometheus.CounterVec
}

// maxJudging is the number of large responses that are judged at the same time.
const maxJudging = 4

// New returns a runner. It does no I/O. The requests' contexts have the values of ctx; its end does not end them.
func New(ctx context.Context, cfg Config) (*Runner, error) {
	if cfg.Boot == nil {
		cfg.Boot = proctree.BootTime
	}

	r := &Runner{
		cfg: cfg, base: context.WithoutCancel(ctx), log: cmp.Or(cfg.Logger, zap.NewNop()).Named("http"),
		transports:  newTransports(newGuard(cfg.Own, cfg.Etcd, cfg.resolver), cfg.resolver),
		secretSlots: make(chan struct{}, secretReads), judging: make(chan struct{}, maxJudging), disk: semaphore.NewWeighted(diskLimit),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carillon_http_writes_refused_total", Help: "Writes of HTTP requests that were refused, by reason: second_connection, closed_connection, deadline."}, []string{"reason"}),
	}

	if cfg.Registerer != nil {
		for _, c := range []prometheus.Collector{r.refused, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "carillon_http_transports", Help: "Sets of connections of HTTP actions: one for each TLS identity in use."},
			func() float64 { return float64(r.transports.size()) })} {
			if err := cfg.Registerer.Register(c); err != nil {
				return nil, fmt.Errorf("register metrics: %w", err)
			}
		}
	}

	return r, nil
}

// RunAttempt runs one attempt from its templates to its end. It calls MayStart directly before the first byte of the
// first request is written, and OnStarted if that was allowed. Kills and pauses are passed through o; a kill ends the
// attempt at once, and a pause has no effect.
func (r *Runner) RunAttempt(a process.Attempt, o *process.Orders) process.Result {
	result := r.runAttempt(&a, o)
	if result.EndedAt.IsZero() {
		result.EndedAt = time.Now()
	}

	return result
}

// runAttempt is RunAttempt without the time of the end.
func (r *Runner) runAttempt(a *process.Attempt, o *process.Orders) process.Result {
	t := &attempt{Runner: r, spec: a, http: a.Action.HTTP}
	if t.http == nil {
		return process.Result{State: task.Failed, Reason: task.ReasonStart, Message: "the action is not an HTTP action"}
	}

	if err := t.readRules(); err != nil {
		return resultOf(t.explain(r.base, err), attemptFacts{})
	}

	out, err := r.newOutput(a)
	if err != nil {
		return process.Result{State: task.Failed, Reason: task.ReasonStart, Message: err.Error()}
	}

	t.timeout = effectiveTimeout(a, t.rules)
	t.gate.boot, t.gate.deadline = r.cfg.Boot, r.cfg.Boot()+t.timeout
	t.gate.mayStart, t.gate.mayContinue, t.gate.onStarted = a.MayStart, a.MayContinue, a.OnStarted
	t.gate.calledOff, t.gate.refused = o.CalledOff(), r.refused

	ctx, cancel := context.WithTimeoutCause(r.base, t.timeout, errTimeout)
	t.orders.begin(t, o, cancel)

	result := t.run(ctx, out)

	t.gate.closeFor(errAttemptOver)
	t.gate.reportStart() // the response may arrive before the goroutine that wrote has reported
	cancel()
	t.orders.end(o)

	if out != nil {
		stored := out.Summary()
		if result.OutputBytes == 0 { // also of a response that was not complete
			result.OutputBytes, result.Truncated, result.Tail = stored.Bytes, stored.Truncated, stored.Tail
		}
		if stored.Err != nil && result.Message == "" {
			result.Message = "output is not kept: " + stored.Err.Error()
		}
		out.Close()
	}

	result.StartedAt = t.gate.began()
	result.Message = t.mask.Apply(result.Message)

	return result
}

// newOutput begins the output of an attempt. It returns nil if there is no spool.
func (r *Runner) newOutput(a *process.Attempt) (*spool.Output, error) {
	if r.cfg.Spool == nil {
		return nil, nil
	}

	path, err := r.cfg.Spool.Path(a.Namespace, a.Task, a.ID, max(a.Attempt, 1))
	if err != nil {
		return nil, err
	}

	return r.cfg.Spool.NewResponse(path, a.Output), nil
}

// CloseIdle closes the connections that no attempt uses. Call it after a change of the rules, so that they do not stay
// open for another second.
func (r *Runner) CloseIdle() { r.transports.closeIdle() }

// Close closes the idle connections. The caller must call it after all attempts have ended.
func (r *Runner) Close() { r.CloseIdle() }

// FilterStandardLog returns a writer for the standard logger, without what net/http logs of its clients' connections: a
// target can send bytes that belong to no request, and net/http logs them as they are. They may contain secrets that the
// target has received.
func FilterStandardLog(to io.Writer) io.Writer { return standardLog{to} }

// unsolicited begins the message of net/http about such bytes.
var unsolicited = []byte("Unsolicited response received on idle HTTP channel")

// standardLog filters what the standard logger writes: each call of Write contains one message.
type standardLog struct{ to io.Writer }

func (l standardLog) Write(b []byte) (int, error) {
	if bytes.Contains(b, unsolicited) {
		return len(b), nil
	}
	return l.to.Write(b)
}
