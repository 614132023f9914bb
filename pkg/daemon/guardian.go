package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// guardianCommand returns the command that an agent starts as its guardian. It communicates
// with its agent on standard input and output and is of no use to users.
func guardianCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "guardian",
		Short:  "Kill the processes of a dead agent (started by the agent)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := newLogger(Defaults(), os.Stderr).Named("guardian")
			// The guardian outlives its agent, so signals that stop the agent must not stop it.
			return guardian.Serve(context.WithoutCancel(cmd.Context()), cmd.InOrStdin(), cmd.OutOrStdout(), log,
				func(ctx context.Context, h guardian.Hello) error { return recordCleared(ctx, h, log) })
		},
	}

	cmd.AddCommand(clearCommand())

	return cmd
}

// clearCommand returns the command that the service manager runs when the daemon has ended for any reason.
// If both the daemon and its guardian were killed, systemd before 254 cannot start the next daemon beside the control
// groups that they have left.
func clearCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "clear",
		Short: "Kill the processes in the control groups of a dead agent, and remove the groups (started by systemd)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(file, cmd.Flags())
			if err != nil {
				return err
			}
			return clearGroups(cmd.Context(), cfg.DataDir)
		},
	}

	cmd.Flags().StringVar(&file, "config", "", "YAML file with the agent's settings")

	return cmd
}

// clearTimeout is how long clearGroups waits for a guardian that is still killing processes. It is longer than the
// guardian's own time limits.
const clearTimeout = 70 * time.Second

// clearGroups kills the processes in the control groups that former daemons of a data directory left, and removes the
// groups, as the next daemon would do. It fails if a daemon runs on the directory.
func clearGroups(ctx context.Context, dir string) error {
	record := filepath.Join(dir, groupsRecord)
	if b, err := os.ReadFile(record); errors.Is(err, fs.ErrNotExist) || err == nil && len(b) == 0 {
		return nil
	}

	// The lock proves that no daemon is running, and the guardian's exit that nothing else kills processes.
	lock, err := datadir.Open(dir)
	if err != nil {
		return err
	}

	defer lock.Close()

	ctx, cancel := context.WithTimeout(ctx, clearTimeout)
	defer cancel()

	if err := guardian.WaitForExit(ctx, dir); err != nil {
		return err
	}

	groups, err := cgroup.Open(cgroup.Config{Setting: cgroup.Off, Record: record})
	if err != nil {
		return err
	}

	return groups.ClearFormer()
}

// recordCleared writes cleared/<instance>, so that owners can replace the attempts of
// the dead instance early. With an embedded etcd it does nothing, because that died with the daemon.
func recordCleared(ctx context.Context, h guardian.Hello, log *zap.Logger) error {
	if len(h.Etcd) == 0 {
		return nil
	}

	var a etcdAccess
	if err := json.Unmarshal(h.Etcd, &a); err != nil {
		return fmt.Errorf("access to etcd: %w", err)
	}

	keys, err := record.NewKeys(a.Prefix)
	if err != nil {
		return err
	}

	c, err := a.dialEtcd(ctx, log)
	if err != nil {
		return err
	}

	defer c.Close()

	return store.New(c, kv.Direct(c), keys).PutCleared(ctx, h.Instance, task.At(time.Now()))
}

// groupsRecord is the file in the data directory that lists the control groups. The next daemon
// removes them if neither the daemon nor its guardian has.
const groupsRecord = "cgroups"

// openGroups opens the control groups for attempts, if the host has any. Without them, and for the first process of a
// container, it creates Orphans.
func (n *Node) openGroups() (err error) {
	if n.env.Act != nil || !slices.Contains(n.cfg.Roles, task.RoleExecutor) {
		return nil
	}

	n.groups, err = cgroup.Open(cgroup.Config{
		Setting: n.cfg.Cgroup, Node: n.cfg.Name, Instance: n.instance,
		Record: filepath.Join(n.cfg.DataDir, groupsRecord), Logger: n.log,
	})
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}

	if why := n.groups.LimitsError(); n.groups.Any() {
		n.log.Info("attempts have control groups", zap.String("cgroup", n.groups.Roots()[0]), zap.Strings("limits", n.groups.Limited()), zap.NamedError("lacks", why))
	} else {
		n.log.Info("attempts have no control groups", zap.NamedError("why", why))
	}

	// Without groups, orphans have to be adopted, so that processes that daemonize are found. The first process of a
	// container adopts all orphans in any case and has to reap them.
	if !n.groups.Any() || os.Getpid() == 1 {
		n.orphans = proctree.NewOrphans()
	}

	return nil
}
