package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// guardianCommand is the process that an agent starts beside itself. It speaks
// with its agent on standard input and output; it is of no use to anybody else.
func guardianCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "guardian",
		Short:  "Kill what a dead agent left running (started by the agent)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := newLogger(Defaults(), os.Stderr).Named("guardian")
			// The guardian outlives its agent, and so the signals that end it.
			return executor.RunGuardian(context.WithoutCancel(cmd.Context()), cmd.InOrStdin(), cmd.OutOrStdout(), log,
				func(ctx context.Context, h executor.Hello) error { return sayCleared(ctx, h, log) })
		},
	}
}

// sayCleared writes cleared/<instance>, for those that wait for the attempts of
// the dead instance. With an embedded etcd there is nobody: it died too.
func sayCleared(ctx context.Context, h executor.Hello, log *zap.Logger) error {
	if len(h.Etcd) == 0 {
		return nil
	}
	var a etcdAccess
	if err := json.Unmarshal(h.Etcd, &a); err != nil {
		return fmt.Errorf("access to etcd: %w", err)
	}
	keys, err := store.NewKeys(a.Prefix)
	if err != nil {
		return err
	}
	c, err := a.dial(ctx, log)
	if err != nil {
		return err
	}
	defer c.Close()
	return store.New(c, kv.Direct(c), keys).PutCleared(ctx, h.Instance, task.At(time.Now()))
}
