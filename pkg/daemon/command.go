package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/term"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/daemon/etcdhistory"
	"github.com/carillonhq/carillon/pkg/daemon/garbage"
	"github.com/carillonhq/carillon/pkg/daemon/peerprobe"
	"github.com/carillonhq/carillon/pkg/daemon/systemd"
	"github.com/carillonhq/carillon/pkg/daemon/unixsocket"
	"github.com/carillonhq/carillon/pkg/internal/version"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Commands returns the commands that run a node: dev, agent, and the guardian that
// an agent starts.
func Commands() []*cobra.Command { return Environment{}.Commands() }

// agentCommand returns the command that runs a node of a cluster.
func (e Environment) agentCommand() *cobra.Command {
	flags := Defaults()
	var file string
	var check bool
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run a cluster node",
		Long: "Run the node of this host. It schedules its share of the tasks and runs the attempts assigned to it, until you stop it.\n" +
			"On SIGTERM the node drains: other nodes take over its shards, and running attempts may continue for --drain-timeout.\n" +
			"A second signal stops it immediately.\n\n" +
			"You can set every flag in the environment, such as CARILLON_DATA_DIR for --data-dir, and in a YAML file, such as\n" +
			"data_dir. Flags override the environment, and the environment overrides the file.\n" +
			"--check-config validates the settings and prints each value and its origin, without starting the node.\n\n" +
			"Under systemd with Type=notify, the node reports when it is ready, what it is waiting for, and that it is alive.",
		Example: "  carillon agent --name web1 --etcd-endpoints https://10.0.0.1:2379,https://10.0.0.2:2379 --etcd-ca ca.pem\n" +
			"  carillon agent --config /etc/carillon/agent.yaml --label role=db --label zone=a\n" +
			"  carillon agent --config /etc/carillon/agent.yaml --check-config\n" +
			"  carillon agent --embedded --data-dir ./node\n" +
			"  carillon agent --embedded --name n1 --initial-cluster n1=https://10.0.0.1:2380,n2=https://10.0.0.2:2380,n3=https://10.0.0.3:2380",
		Args:        cobra.NoArgs,
		Annotations: map[string]string{"carillon/formats": "table,json"}, // of --check-config
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check {
				return checkConfig(cmd.OutOrStdout(), cmd.ErrOrStderr(), file, cmd.Flags())
			}

			cfg, err := loadConfig(file, cmd.Flags())
			if err != nil {
				return err
			}

			return e.runDaemon(cmd.Context(), cfg, cmd.ErrOrStderr(), nil)
		},
	}

	cmd.Flags().StringVar(&file, "config", "", "YAML file with settings")
	cmd.Flags().BoolVar(&check, "check-config", false, "validate and print the settings, then exit: 0 if they are valid, 2 if not")
	bindFlags(cmd.Flags(), &flags)

	return cmd
}

// devCommand returns the command that runs a single node for development.
func (e Environment) devCommand() *cobra.Command {
	cfg := Defaults()
	cfg.Name, cfg.Embedded, cfg.LogFormat, cfg.LogLevel = "dev", true, "console", "info"
	cfg.DataDir, cfg.DrainTimeout, cfg.Shards = "", task.Duration(5*time.Second), 16
	cfg.HTTPAllow = []string{"127.0.0.0/8", "::1"} // services under development; the node's own ports stay denied
	e.OpenDefault, e.OwnKeys = true, true
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a node with an embedded etcd, for development",
		Long: "Run a single node with an embedded etcd in one process. Its data survives a restart. The namespace default is open: its\n" +
			"tasks may use a shell, and run as any user that this node can run them as. The key for secrets is in the data\n" +
			"directory; tasks that run as the user of the node can read it.\n\n" +
			"The node writes the bootstrap token to the place where the other commands look for it. With --data-dir, the token stays in\n" +
			"that directory and the node prints how to use it, so several such nodes can run side by side.",
		Example: "  carillon dev\n  carillon dev --data-dir /tmp/try --listen 127.0.0.1:7171",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Tasks run as the user that started it. For users other than root, that is the only possibility.
			if cfg.DefaultUser == "" && os.Geteuid() == 0 {
				cfg.DefaultUser = "root"
			}

			own := cfg.DataDir != ""
			if !own {
				dir, err := userDir("XDG_DATA_HOME", ".local/share")
				if err != nil {
					return err
				}
				cfg.DataDir = filepath.Join(dir, "dev")
			}

			if dir, err := filepath.Abs(cfg.DataDir); err == nil && len(dir) <= unixsocket.MaxPath-len("/api.sock") {
				cfg.Socket = filepath.Join(dir, "api.sock")
			}

			return e.runDaemon(cmd.Context(), cfg, cmd.ErrOrStderr(), func(n *Node) error {
				out := cmd.OutOrStdout()
				if err := printWelcome(n, own, out); err != nil {
					return err
				}

				// A link logs in the first person who opens it, so it is not written to a file that others may read.
				if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
					go printLoginLink(cmd.Context(), n, file)
				}

				return nil
			})
		},
	}

	cmd.Flags().StringVar(&cfg.DataDir, "data-dir", "", "data directory (default: ~/.local/share/carillon/dev)")
	cmd.Flags().StringVar(&cfg.ScratchDir, "scratch-dir", "", "absolute path; working directories of attempts are in its subdirectory carillon-dev and deleted at the end (default: /var/cache/carillon/dev for root, so that the users of tasks can enter it, else in the data directory)")
	cmd.Flags().StringVar(&cfg.DefaultUser, "default-user", "", "OS user of tasks that name none (default: the user who runs this command)")
	cmd.Flags().StringVar(&cfg.Cgroup, "cgroup", cfg.Cgroup, "where to create control groups for attempts: auto (below that of the node), off, or a path such as /carillon")
	cmd.Flags().StringVar(&cfg.Listen, "listen", cfg.Listen, "address of the API")
	cmd.Flags().BoolVar(&cfg.Insecure, "insecure", cfg.Insecure, "let the API listen beyond loopback without TLS")
	cmd.Flags().Int64Var(&cfg.EtcdQuota, "etcd-quota", cfg.EtcdQuota, "maximum size of the embedded etcd, in bytes (0: 8 GiB)")
	cmd.Flags().Var((*duration)(&cfg.EventRetention), "event-retention", "minimum time that events are kept, while at most half of the etcd quota is in use (0s: only the last 30,000 revisions)")
	cmd.Flags().StringVar(&cfg.LogLevel, "log-level", cfg.LogLevel, "debug, info, warn or error")

	return cmd
}

// printWelcome prints how to use the node. If the node has the default data
// directory, it copies the token to where the other commands find it. With own, the node has a
// directory that the user chose, and its token must not replace that of the default node.
func printWelcome(n *Node, own bool, out io.Writer) error {
	path, server, use := n.TokenPath(), n.Address(), ""

	switch _, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
		// The first token was deleted, and there is no other way in than the socket and other tokens.
		path = "none here"
		if n.cfg.Socket != "" {
			server = "unix://" + n.cfg.Socket
		}
	case own:
		use = fmt.Sprintf("  export CARILLON_TOKEN_FILE=%s\n", path)
	default:
		if path, err = publishToken(path); err != nil {
			return err
		}
	}

	if server != "http://127.0.0.1:7070" {
		use += fmt.Sprintf("  export CARILLON_SERVER=%s\n", server)
	}

	_, err := fmt.Fprintf(out, "Carillon %s is up: %s\n\nWeb UI: %[2]s%[8]s · log in with: carillon ui\n\nIn another terminal:\n%[3]s"+
		"  carillon task create tick --schedule '@every 5s' -- /bin/sh -c 'echo $CARILLON_SCHEDULED_TIME'\n"+
		"  carillon task list\n  carillon logs tick\n\nInspect the cluster:\n"+
		"  etcdctl --endpoints %[4]s get --prefix %[5]s/\n\nData: %[6]s · token: %[7]s · stop with Ctrl-C\n\n",
		version.Get(), n.Address(), use, n.EtcdEndpoints(), n.cfg.Prefix, n.cfg.DataDir, path, uiPath)

	return err
}

const (
	// uiPath is the path of the Web UI.
	uiPath = "/ui"
	// linkTimeout limits how long carillon dev waits until its node can create a login link.
	linkTimeout = 30 * time.Second
)

// printLoginLink prints a login link of the first token, when the node is ready to create it. It prints nothing if that
// token was deleted, or if the node does not become ready.
func printLoginLink(ctx context.Context, n *Node, out io.Writer) {
	ctx, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()

	token, err := os.ReadFile(n.TokenPath())
	if err != nil {
		return
	}

	c, err := client.New(client.Config{Server: n.Address(), Token: strings.TrimSpace(string(token)), Insecure: true}) // the server is this process
	if err != nil {
		return
	}

	for {
		link, err := c.Sessions.CreateLink(ctx)
		if err == nil {
			fmt.Fprintf(out, "Log in to the Web UI, once and within ten minutes: %s%s\n\n", n.Address(), link.Path)
			return
		}

		if !errors.Is(err, task.ErrUnavailable) || !clock.Sleep(ctx, 100*time.Millisecond) {
			return
		}
	}
}

// publishToken copies a token file to where the other commands look for it, and returns that path.
func publishToken(from string) (string, error) {
	token, err := os.ReadFile(from)
	if err != nil {
		return "", fmt.Errorf("admin token: %w", err)
	}

	dir, err := userDir("XDG_CONFIG_HOME", ".config")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}

	path := filepath.Join(dir, "token")

	return path, datadir.WriteSynced(path, token, 0o600)
}

// userDir returns Carillon's directory below an XDG base directory of the user.
func userDir(variable, fallback string) (string, error) {
	if dir := os.Getenv(variable); filepath.IsAbs(dir) {
		return filepath.Join(dir, "carillon"), nil
	}

	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no home directory: set --data-dir, or %s: %w", variable, err)
	}

	return filepath.Join(home, fallback, "carillon"), nil
}

// runDaemon starts a node and runs it until ctx ends. started, if not nil, is called once,
// when the node listens. If the cluster gets a new epoch, runDaemon starts the node again as another instance.
func (e Environment) runDaemon(ctx context.Context, cfg Config, logs io.Writer, started func(*Node) error) error {
	if err := cfg.Validate(); err != nil {
		return err
	}

	defer garbage.MakeRoom()()

	log := newLogger(cfg, logs)
	defer log.Sync() // fails on terminals and pipes, which need no sync

	// Take over the sockets before the first process is started, because it would inherit them.
	addresses := systemd.Addresses{Socket: cfg.Socket, Listen: cfg.Listen}
	e.inherited = systemd.InheritSockets(&addresses, log)
	defer e.inherited.Close()

	cfg.Socket = addresses.Socket // the path of the inherited socket, if the setting was empty

	e.serviceManager = systemd.NewNotifier(cfg.DrainTimeout.Std(), log)

	e.alarm = newAlarmCommand(&cfg, e.withDefaults().Now, log)
	defer startAlarm(ctx, e.alarm)()

	return e.serviceManager.ReportWhile(ctx, func() error {
		for {
			err := e.runOnce(ctx, cfg, log, started)
			switch {
			case !errors.Is(err, etcdhistory.ErrNewHistory):
				return err
			case ctx.Err() != nil:
				return nil // the process stops anyway
			}

			started = nil // called once only
			e.serviceManager.SetNode(nil)
		}
	})
}

// runOnce starts one instance of the node and runs it to its end. Most processes run only one.
func (e Environment) runOnce(ctx context.Context, cfg Config, log *zap.Logger, started func(*Node) error) error {
	n, err := e.Start(ctx, cfg, log)
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped before it had started
		}
		return err
	}

	defer n.Close()

	e.serviceManager.SetNode(n.health)
	n.listeners.logListening()

	if started != nil {
		if err := n.listeners.listenError(); err != nil { // only carillon dev sets started, and its user is watching
			return err
		}
		if err := started(n); err != nil {
			return err
		}
	}

	if err := n.Run(ctx); err != nil {
		return err
	}

	log.Info("stopped", zap.String("node", cfg.Name))

	return nil
}

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
	// BootID identifies the boot of the host. Default: that of this machine, or "" if it does not say.
	BootID string
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
	alarm          *alarmCommand     // nil: none
	inherited      systemd.Sockets   // sockets of the service manager on which the API listens
}

// thisBoot returns the id of the boot of this machine, which Linux draws when it boots. It returns "" if there is none.
func thisBoot() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}

	return strings.TrimSpace(string(id))
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

	if e.BootID == "" {
		e.BootID = thisBoot()
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
