package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// guardianCommand is the process that an agent starts beside itself. It speaks
// with its agent on standard input and output; it is of no use to anybody else.
func guardianCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "guardian",
		Short:  "Kill what a dead agent left running (started by the agent)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := newLogger(Defaults(), os.Stderr).Named("guardian")
			// The guardian outlives its agent, and so the signals that end it.
			return guardian.Serve(context.WithoutCancel(cmd.Context()), cmd.InOrStdin(), cmd.OutOrStdout(), log,
				func(ctx context.Context, h guardian.Hello) error { return sayCleared(ctx, h, log) })
		},
	}

	cmd.AddCommand(clearCommand())

	return cmd
}

// clearCommand is for the service manager, when the daemon has ended however it did.
// systemd before 254 cannot start the next one beside the control groups that a daemon
// and its guardian have left which both were killed.
func clearCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "clear",
		Short: "Kill what a dead agent left in control groups, and remove these (started by systemd)",
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

// clearPatience is how long a guardian may take for what it does itself.
const clearPatience = 70 * time.Second

// clearGroups does what the next daemon on a data directory would do first. It fails
// if one runs there.
func clearGroups(ctx context.Context, dir string) error {
	record := filepath.Join(dir, groupsRecord)
	if b, err := os.ReadFile(record); errors.Is(err, fs.ErrNotExist) || err == nil && len(b) == 0 {
		return nil
	}

	lock, err := datadir.Open(dir)
	if err != nil {
		return err
	}

	defer lock.Close()

	ctx, cancel := context.WithTimeout(ctx, clearPatience)
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

// sayCleared writes cleared/<instance>, for those that wait for the attempts of
// the dead instance. With an embedded etcd there is nobody: it died too.
func sayCleared(ctx context.Context, h guardian.Hello, log *zap.Logger) error {
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
