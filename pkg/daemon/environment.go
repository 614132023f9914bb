package daemon

import (
	"context"
	"net"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/daemon/peerprobe"
	"github.com/carillonhq/carillon/pkg/daemon/systemd"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
)

// Environment is what a node takes from outside its process: clocks, network, etcd and
// host. Its zero value is the real environment. Tests replace it with clocks that they can
// move, a network in memory and an etcd that misbehaves; the rest of the node stays as it
// is.
type Environment struct {
	// Now is the wall clock; default time.Now.
	Now func() time.Time
	// Boot is a clock that counts the time in which the host was suspended;
	// default CLOCK_BOOTTIME. One that is set here is a host that never sleeps.
	Boot func() time.Duration
	// Listen opens the API's listener; default net.Listen.
	Listen func(network, address string) (net.Listener, error)
	// Dial reaches other nodes; default net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Etcd reaches etcd; default: the embedded server, or the endpoints, of cfg.
	// The node closes the client.
	Etcd func(ctx context.Context, cfg Config) (*kv.Client, error)
	// Host is the same for nodes that reach each other by loopback; default: the
	// boot of this machine, and the network namespace of this process.
	Host string
	// Format is the newest format of records that the node understands; default
	// store.NewestFormat. With the one after it the node plays a later version.
	Format int
	// Unguarded nodes have no guardian beside them: they run no processes.
	Unguarded bool
	// Act, if set, takes the place of processes.
	Act process.Fake

	serviceManager *systemd.Notifier // nil: there is none
	inherited      systemd.Sockets   // sockets of the service manager on which the API listens
}

// withDefaults fills in what is not set.
func (e Environment) withDefaults() Environment {
	if e.Now == nil {
		e.Now = time.Now
	}

	if e.Listen == nil {
		e.Listen = net.Listen
	}

	if e.Dial == nil {
		e.Dial = (&net.Dialer{}).DialContext
	}

	if e.Host == "" {
		e.Host = peerprobe.ThisHost()
	}

	if e.Format == 0 {
		e.Format = store.NewestFormat
	}

	return e
}

// bootTime is the time since the host was booted, with the time in which it was suspended.
func (e Environment) bootTime() time.Duration {
	if e.Boot != nil {
		return e.Boot()
	}
	return proctree.BootTime()
}

// Start is Start in this environment.
func (e Environment) Start(ctx context.Context, cfg Config, log *zap.Logger) (*Node, error) {
	return startNode(ctx, cfg, e.withDefaults(), log)
}

// Commands are Commands in this environment.
func (e Environment) Commands() []*cobra.Command {
	return []*cobra.Command{e.devCommand(), e.agentCommand(), guardianCommand()}
}
