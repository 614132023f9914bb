package daemon

import (
	"context"
	"net"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/daemon/peerprobe"
	"github.com/carillonhq/carillon/pkg/daemon/systemd"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
)

// Environment holds what a node uses from outside its process: clocks, network, etcd and
// host. The zero value is the real environment. Tests replace it with clocks that they
// control, a network in memory and an etcd with faults; the rest of the node is the real one.
type Environment struct {
	// Now is the wall clock; default time.Now.
	Now func() time.Time
	// Boot is a monotonic clock that counts the time in which the host was suspended;
	// default CLOCK_BOOTTIME. If it is set, the host counts as one that never suspends.
	Boot func() time.Duration
	// Listen opens the API's listener; default net.Listen.
	Listen func(network, address string) (net.Listener, error)
	// Dial connects to other nodes; default net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Etcd connects to etcd; default: the embedded server or the endpoints of cfg.
	// The node closes the client.
	Etcd func(ctx context.Context, cfg Config) (*kv.Client, error)
	// Host identifies the host: it is equal for nodes that can reach each other by loopback addresses. Default: the
	// boot id of this machine with the network namespace of this process.
	Host string
	// Format is the newest record format that the node understands; default
	// store.NewestFormat. With NewestFormat + 1, tests emulate a later version.
	Format int
	// OpenDefault opens the namespace default of a cluster that the node creates, as of a cluster of one person: its
	// tasks may use a shell, name any user, and read any environment file. The command dev sets it.
	OpenDefault bool
	// OwnKeys lets a node without key file create one in its data directory, so that secrets can be tried without
	// preparation. The node does not protect it from tasks that run as its own user. The command dev sets it.
	OwnKeys bool
	// Unguarded nodes start no guardian. They must not run processes.
	Unguarded bool
	// Act, if set, replaces processes.
	Act process.Fake
	// HTTP, if set, replaces what runs the attempts of HTTP actions.
	HTTP executor.AttemptRunner

	serviceManager *systemd.Notifier // nil: none
	inherited      systemd.Sockets   // sockets of the service manager on which the API listens
}

// withDefaults returns the environment with defaults for all fields that are not set, except Boot and Etcd.
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

// bootTime returns the time since the host was booted, including the time in which it was suspended.
func (e Environment) bootTime() time.Duration {
	if e.Boot != nil {
		return e.Boot()
	}
	return proctree.BootTime()
}

// Start locks the data directory, listens, connects to etcd, and creates the cluster if there is none. While etcd does
// not answer, it waits until ctx ends. If it returns no error, the caller must call Close.
func (e Environment) Start(ctx context.Context, cfg Config, log *zap.Logger) (*Node, error) {
	return startNode(ctx, cfg, e.withDefaults(), log)
}

// Commands is the function Commands, in this environment.
func (e Environment) Commands() []*cobra.Command {
	return []*cobra.Command{e.devCommand(), e.agentCommand(), guardianCommand()}
}
