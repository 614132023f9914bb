package httpaction

import (
	"cmp"
	"context"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/policy"
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
	cfg  Config
	base context.Context // the parent of the requests' contexts; it does not end
	log  *zap.Logger
}

// New returns a runner. It does no I/O. The requests' contexts have the values of ctx; its end does not end them.
func New(ctx context.Context, cfg Config) (*Runner, error) {
	if cfg.Boot == nil {
		cfg.Boot = proctree.BootTime
	}
	r := &Runner{cfg: cfg, base: context.WithoutCancel(ctx), log: cmp.Or(cfg.Logger, zap.NewNop()).Named("http")}
	return r, nil
}

// RunAttempt runs one attempt from its templates to its end. It calls MayStart directly before the first byte of the
// first request is written, and OnStarted if that was allowed.
func (r *Runner) RunAttempt(a process.Attempt, o *process.Orders) process.Result {
	return process.Result{NotStarted: true}
}

// CloseIdle closes the connections that no attempt uses. Call it after a change of the rules, so that they do not stay
// open for another second.
func (r *Runner) CloseIdle() {}

// Close closes the idle connections. The caller must call it after all attempts have ended.
func (r *Runner) Close() { r.CloseIdle() }
